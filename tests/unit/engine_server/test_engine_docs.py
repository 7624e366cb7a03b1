"""docs/engine.md names every configuration key and every metric."""

from pathlib import Path

from forebay.engine.keys import KEYS
from forebay.engine.server.metrics import EngineMetrics

PAGE = (Path(__file__).parents[3] / "docs" / "engine.md").read_text()


def test_every_key_is_documented_with_its_description() -> None:
    for key in KEYS:
        line = next(line for line in PAGE.splitlines() if line.startswith(f"| `{key.name}` "))
        assert key.description in line


def test_every_metric_is_documented() -> None:
    names = {line.split()[2] for line in EngineMetrics("1", "m").render().splitlines() if line.startswith("# TYPE")}
    assert names
    for name in names:
        assert f"| `{name}` |" in PAGE
