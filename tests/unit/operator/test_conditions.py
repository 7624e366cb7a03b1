"""Conditions: times move only when a status flips, and reasons are a closed set."""

from datetime import timedelta

import pytest

import operator_build as build
from forebay.contract.errors import Bug
from forebay.operator.conditions import REASONS, Condition, ConditionType, Reason, find, merge

LATER = build.NOW + timedelta(hours=1)


def _ready(status: str, reason: Reason, message: str = "m") -> Condition:
    return Condition(ConditionType.READY, "True" if status == "True" else "False", reason, message)


def test_a_new_condition_starts_now() -> None:
    merged = merge([], [_ready("True", Reason.REALISED)], 3, build.NOW)
    assert merged == [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Realised",
            "message": "m",
            "observedGeneration": 3,
            "lastTransitionTime": "2027-01-01T12:00:00Z",
        }
    ]


def test_the_time_stays_while_the_status_stays() -> None:
    old = merge([], [_ready("False", Reason.STARTING)], 1, build.NOW)
    new = merge(old, [_ready("False", Reason.PROGRESSING, "other")], 2, LATER)
    assert new[0]["lastTransitionTime"] == old[0]["lastTransitionTime"]
    assert (new[0]["reason"], new[0]["message"], new[0]["observedGeneration"]) == ("Progressing", "other", 2)


def test_the_time_moves_when_the_status_flips() -> None:
    old = merge([], [_ready("False", Reason.STARTING)], 1, build.NOW)
    assert merge(old, [_ready("True", Reason.REALISED)], 1, LATER)[0]["lastTransitionTime"] == "2027-01-01T13:00:00Z"


def test_a_condition_that_does_not_apply_any_more_is_dropped() -> None:
    old = merge([], [Condition(ConditionType.STALLED, "True", Reason.CRASH_LOOP, "m")], 1, build.NOW)
    assert find(merge(old, [_ready("True", Reason.REALISED)], 1, LATER), ConditionType.STALLED) is None


def test_a_long_message_is_cut() -> None:
    assert len(merge([], [_ready("True", Reason.REALISED, "x" * 5000)], 1, build.NOW)[0]["message"]) == 1024


def test_a_reason_of_another_type_is_our_bug() -> None:
    with pytest.raises(Bug):
        Condition(ConditionType.SERVABLE, "True", Reason.ALL_SCHEDULED, "m")


def test_every_reason_stands_on_some_type_besides_ready() -> None:
    placed = set().union(*(reasons for kind, reasons in REASONS.items() if kind is not ConditionType.READY))
    only_on_ready = {Reason.REALISED, Reason.VALID, Reason.NODES_FOUND, Reason.NO_NODES}
    assert set(Reason) - placed == only_on_ready


def test_every_type_has_reasons() -> None:
    assert set(REASONS) == set(ConditionType)
