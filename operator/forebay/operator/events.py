"""Kubernetes Events for what changed between two statuses; one event for each change, none at rest."""

from collections.abc import Mapping
from typing import Any

from forebay.operator.actions import Emit
from forebay.operator.conditions import ConditionType, find
from forebay.operator.snapshot import Json


def transitions(document: Json, status: Mapping[str, Any]) -> tuple[Emit, ...]:
    """Events for a new stall, a new target, moved traffic and a realised spec."""
    old = document.get("status") or {}
    found = []
    before = find(old.get("conditions") or [], ConditionType.STALLED) or {}
    after = find(status["conditions"], ConditionType.STALLED)
    if after is not None and after["reason"] != before.get("reason"):
        found.append(Emit(document, "Warning", after["reason"], after["message"]))
    for field, reason, text in (
        ("targetRevision", "RevisionCreated", "revision {} is the target"),
        ("stableRevision", "TrafficMoved", "revision {} serves"),
    ):
        value = status.get(field)
        if value is not None and value != old.get(field):
            found.append(Emit(document, "Normal", reason, text.format(value)))
    ready, was_ready = (
        find(conditions, ConditionType.READY) or {}
        for conditions in (status["conditions"], old.get("conditions") or [])
    )
    if ready.get("status") == "True" and was_ready.get("status") != "True":
        found.append(Emit(document, "Normal", ready["reason"], ready["message"]))
    return tuple(found)
