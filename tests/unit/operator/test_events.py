"""Kubernetes Events: one for each change, none at rest."""

from typing import Any

import operator_build as build
from forebay.operator.conditions import Condition, ConditionType, Reason, merge
from forebay.operator.events import transitions

READY = Condition(ConditionType.READY, "True", Reason.REALISED, "all up")
NOT_READY = Condition(ConditionType.READY, "False", Reason.STARTING, "0 of 1")


def _status(*conditions: Condition, **fields: Any) -> dict[str, Any]:
    return {"conditions": merge([], conditions, 1, build.NOW), **fields}


def _stalled(reason: Reason) -> Condition:
    return Condition(ConditionType.STALLED, "True", reason, "what and how to repair it")


def _reasons(old: dict[str, Any] | None, new: dict[str, Any]) -> list[tuple[str, str]]:
    return [(item.type, item.reason) for item in transitions(build.deployment(status=old), new)]


def test_an_unchanged_status_makes_no_event() -> None:
    status = _status(READY, targetRevision="a", stableRevision="a")
    assert _reasons(status, status) == []


def test_a_stall_is_a_warning_once_for_each_reason() -> None:
    crash, memory = _status(NOT_READY, _stalled(Reason.CRASH_LOOP)), _status(NOT_READY, _stalled(Reason.OUT_OF_MEMORY))
    assert _reasons(_status(NOT_READY), crash) == [("Warning", "CrashLoop")]
    assert _reasons(crash, crash) == []
    assert _reasons(crash, memory) == [("Warning", "OutOfMemory")]


def test_a_rollout_tells_its_three_steps() -> None:
    first = _status(NOT_READY, targetRevision="b", stableRevision="a")
    moved = _status(NOT_READY, targetRevision="b", stableRevision="b")
    done = _status(READY, targetRevision="b", stableRevision="b")
    before = _status(READY, targetRevision="a", stableRevision="a")
    assert _reasons(before, first) == [("Normal", "RevisionCreated")]
    assert _reasons(first, moved) == [("Normal", "TrafficMoved")]
    assert _reasons(moved, done) == [("Normal", "Realised")]


def test_a_first_status_is_a_change() -> None:
    assert _reasons(None, _status(NOT_READY, targetRevision="a")) == [("Normal", "RevisionCreated")]
