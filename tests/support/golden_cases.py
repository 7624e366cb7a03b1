"""Golden cases: a folder with `resources.yaml` in and `expected.yaml` out.

`resources.yaml` holds one ModelDeployment and what it refers to; `before.yaml`, where there is one, an earlier version
of the ModelDeployment that is already settled. `expected.yaml` is every object that the next pass applies, the names
of what it deletes, and the status. Read by the golden test, written by `make golden`.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from forebay.operator.actions import Apply, Delete, PatchStatus
from operator_build import NAMESPACE, SETTINGS, UID
from operator_world import World

ROOT = Path(__file__).resolve().parent.parent / "golden"
PARTS = {"Model": "model", "GPUClass": "gpu_class", "EngineRelease": "release"}


def case_names() -> list[str]:
    """All cases, sorted."""
    return sorted(path.parent.name for path in ROOT.glob("*/resources.yaml"))


def render_case(name: str) -> dict[str, Any]:
    """What the pass under test does, as plain data."""
    documents = _read(ROOT / name / "resources.yaml")
    settings = replace(SETTINGS, hf_endpoint="http://hub.test", metrics_namespace="monitoring")
    parts = {PARTS[item["kind"]]: item for item in documents if item["kind"] in PARTS} | {"settings": settings}
    (deployment,) = [_placed(item, generation=1) for item in documents if item["kind"] == "ModelDeployment"]
    world = World(deployment, parts)
    before = ROOT / name / "before.yaml"
    if before.exists():
        world.document = _placed(_read(before)[0], generation=1)
        world.settle()
        world.document = _placed(deployment, generation=2) | {"status": world.document["status"]}
    actions = world.operator_pass().actions
    (status,) = [item.status for item in actions if isinstance(item, PatchStatus)]
    return {
        "applied": [item.object for item in actions if isinstance(item, Apply)],
        "deleted": [f"{item.kind} {item.name}" for item in actions if isinstance(item, Delete)],
        "status": status,
    }


def dump(result: dict[str, Any]) -> str:
    """The text of `expected.yaml`."""
    return yaml.dump(result, Dumper=_PlainDumper, sort_keys=True, width=120)


def expected_path(name: str) -> Path:
    """Where the expectation of a case is kept."""
    return ROOT / name / "expected.yaml"


def applied_objects(name: str) -> Iterator[dict[str, Any]]:
    """Every object that a case applies, and every object inside a stored revision."""
    for document in render_case(name)["applied"]:
        yield document
        if document["kind"] == "ControllerRevision":
            yield from document["data"]["objects"]


def _placed(document: dict[str, Any], generation: int) -> dict[str, Any]:
    metadata = {**document["metadata"], "namespace": NAMESPACE, "uid": UID, "generation": generation}
    return {**document, "metadata": metadata}


def _read(path: Path) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(path.read_text(encoding="utf-8")) if item]


class _PlainDumper(yaml.SafeDumper):
    """Writes repeated values in full instead of as anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """No anchors."""
        return data is not None
