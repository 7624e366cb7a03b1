"""The steps of a deployment without an open run, in the words of its docstring."""

from dataclasses import replace

import pytest

from forebay.contract.errors import Bug
from forebay.operator.rollout.plan import Phase, RevisionFacts, RolloutInput, RolloutStep, plan_rollout


def _up(revision: str, count: int = 2, *, inflight: int = 0) -> RevisionFacts:
    return RevisionFacts(revision, True, True, count, count, count, count, inflight)


def _new(revision: str) -> RevisionFacts:
    return RevisionFacts(revision, stored=True, exists=False)


def _given(*revisions: RevisionFacts, target: str | None = "b", serving: str | None = "a") -> RolloutInput:
    return RolloutInput(
        target=target,
        replicas=2,
        serving=serving,
        stable="a",
        confirmed=True,
        drain_overdue=False,
        revisions=revisions,
    )


def test_a_first_deployment_gets_the_traffic_before_it_is_up() -> None:
    step = plan_rollout(replace(_given(_new("b"), serving=None), stable=None))
    assert step == RolloutStep((("b", 2),), "b", Phase.STARTING)


def test_the_old_revision_waits_until_the_routers_confirm() -> None:
    step = plan_rollout(replace(_given(_up("a"), _up("b"), serving="b"), confirmed=False))
    assert step == RolloutStep((("a", 2), ("b", 2)), "b", Phase.CONFIRMING)


def test_the_old_revision_waits_for_its_requests_unless_they_are_overdue() -> None:
    given = _given(_up("a", inflight=3), _up("b"), serving="b")
    assert dict(plan_rollout(given).replicas) == {"a": 2, "b": 2}
    assert dict(plan_rollout(replace(given, drain_overdue=True)).replicas) == {"a": 0, "b": 2}


def test_the_old_revision_stops_and_then_goes() -> None:
    stopping = plan_rollout(_given(_up("a"), _up("b"), serving="b"))
    assert stopping == RolloutStep((("a", 0), ("b", 2)), "b", Phase.DRAINING)
    stopped = RevisionFacts("a", stored=True, exists=True)
    assert dict(plan_rollout(_given(stopped, _up("b"), serving="b")).replicas) == {"b": 2}


def test_one_revision_that_serves_is_settled() -> None:
    assert plan_rollout(_given(_up("b"), serving="b")).phase is Phase.SETTLED


def test_a_revision_that_can_no_longer_be_had_does_not_hold_up_the_target() -> None:
    lost = RevisionFacts("a", stored=False, exists=False)
    assert plan_rollout(_given(lost, _new("b"))).serving == "b"


def test_the_serving_revision_follows_the_number_of_replicas() -> None:
    assert dict(plan_rollout(replace(_given(_up("b"), serving="b"), replicas=5)).replicas) == {"b": 5}


def test_traffic_never_moves_between_revisions_without_a_run() -> None:
    with pytest.raises(Bug, match="without a run"):
        plan_rollout(_given(_up("a"), _up("b")))


def test_a_deployment_that_starts_at_zero_replicas_settles() -> None:
    empty = RevisionFacts("b", stored=True, exists=True)
    given = replace(_given(empty, serving="b"), replicas=0, stable=None)
    assert plan_rollout(given).phase is Phase.SETTLED
