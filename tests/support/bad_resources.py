"""The bad resources of `tests/cluster/bad`: each file with what its header says must come of it.

A header is comment lines `key: value`. `mode: refused` means that the API server does not take the object and that its
answer contains every `expect`. `mode: condition` means that the object is taken and that its status gets the condition
of the line `condition: Type=Status Reason`, whose message contains every `expect`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent.parent / "cluster" / "bad"


@dataclass(frozen=True, slots=True)
class ExpectedCondition:
    """A condition that must appear."""

    type: str
    status: str
    reason: str


@dataclass(frozen=True, slots=True)
class BadResource:
    """One file; `condition` is None when the API server must refuse the object."""

    path: Path
    document: dict[str, Any]
    condition: ExpectedCondition | None
    fragments: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the file, for test ids."""
        return self.path.stem


def bad_resources(*, refused: bool) -> list[BadResource]:
    """All files of one mode, in order."""
    found = [_read(path) for path in sorted(FOLDER.glob("[0-9][0-9]-*.yaml"))]
    return [item for item in found if (item.condition is None) == refused]


def prepared_documents() -> list[dict[str, Any]]:
    """The sound objects that bad ones refer to."""
    return list(yaml.safe_load_all((FOLDER / "prepared.yaml").read_text("utf-8")))


def _read(path: Path) -> BadResource:
    text = path.read_text("utf-8")
    header = [line.removeprefix("# ").partition(": ") for line in text.splitlines() if line.startswith("# ")]
    values: dict[str, list[str]] = {}
    for key, _, value in header:
        values.setdefault(key, []).append(value)
    condition = None
    if values["mode"] == ["condition"]:
        state, _, reason = values["condition"][0].partition(" ")
        kind, _, status = state.partition("=")
        condition = ExpectedCondition(kind, status, reason)
    elif values["mode"] != ["refused"]:
        raise ValueError(f"{path.name}: mode must be refused or condition, not {values['mode']}")
    return BadResource(path, yaml.safe_load(text), condition, tuple(values["expect"]))
