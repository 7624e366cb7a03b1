"""Kubernetes Events for what changed between two statuses; one event for each change, none at rest."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from forebay.operator.actions import Emit
from forebay.operator.conditions import ConditionType, find
from forebay.operator.snapshot import Json


def transitions(document: Json, status: Mapping[str, Any]) -> tuple[Emit, ...]:
    """Events for a new stall, a new target, moved traffic and a realised spec."""
    old = document.get("status") or {}
    before, after = old.get("conditions") or [], status["conditions"]
    found = []
    stalled = find(after, ConditionType.STALLED)
    if stalled is not None and stalled["reason"] != _field(before, ConditionType.STALLED, "reason"):
        found.append(Emit(document, "Warning", stalled["reason"], stalled["message"]))
    for field, reason, text in _REVISIONS:
        value = status.get(field)
        if value is not None and value != old.get(field):
            found.append(Emit(document, "Normal", reason, text.format(value)))
    ready = find(after, ConditionType.READY)
    if ready is not None and ready["status"] == "True" and _field(before, ConditionType.READY, "status") != "True":
        found.append(Emit(document, "Normal", ready["reason"], ready["message"]))
    return tuple(found)


_REVISIONS: Final = (
    ("targetRevision", "RevisionCreated", "revision {} is the target"),
    ("stableRevision", "TrafficMoved", "revision {} serves"),
)


def _field(conditions: Iterable[Json], kind: ConditionType, field: str) -> Any:
    condition = find(conditions, kind)
    return None if condition is None else condition.get(field)
