"""Runs through the whole pass: they open, split the traffic, wait for gates and people, and can be taken back."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import operator_build as build
from forebay.contract.names import LABEL_REVISION, ROUTES_KEY
from forebay.contract.wire import RevisionReport, parse_routes
from forebay.operator.actions import Emit, Plan
from forebay.operator.conditions import ConditionType, find
from forebay.operator.inventory import reconcile_action
from forebay.operator.rollout.record import read_run
from forebay.operator.snapshot import ActionSnapshot, DeploymentSnapshot
from operator_world import World

ERRORS = {"name": "errors", "errors": {"minRequests": 10}}
STAGED: dict[str, Any] = {
    "steps": [
        {"name": "isolated", "capacity": "1", "traffic": 0},
        {"name": "half", "capacity": "50%", "traffic": 50, "gates": [ERRORS]},
        {"name": "all", "capacity": "100%", "traffic": 100, "gates": [{"name": "go", "approval": {}}]},
    ],
    "bakeSeconds": 10,
    "progressDeadlineSeconds": 60,
}


class RunWorld(World):
    """A world whose routers count requests and errors by revision, and in which people say things."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(document=build.deployment(replicas=2, rollout=STAGED, **spec))
        self.counts: dict[str, tuple[int, int]] = {}
        self.actions: list[dict[str, Any]] = []
        self.settle()

    def snapshot(self) -> DeploymentSnapshot:
        """As `observe` reads it."""
        given = super().snapshot()
        counted = tuple(RevisionReport(name, *numbers) for name, numbers in sorted(self.counts.items()))
        routers = tuple(
            replace(item, report=replace(item.report, revisions=counted)) if item.report else item
            for item in given.routers
        )
        return replace(given, routers=routers, actions=tuple(a for a in self.actions if a.get("status")))

    def say(self, verb: str, **spec: Any) -> dict[str, Any]:
        """A RolloutAction on the last run, judged; returns its status."""
        rollout = self.rollouts()[-1]
        metadata = rollout["metadata"]
        action = {
            "apiVersion": build.API,
            "kind": "RolloutAction",
            "metadata": {"name": f"a{len(self.actions)}", "namespace": build.NAMESPACE},
            "spec": {
                "rolloutRef": {"name": metadata["name"], "uid": metadata["uid"]},
                "verb": verb,
                "reason": "test",
                **spec,
            },
        }
        (patch,) = reconcile_action(ActionSnapshot(build.NAMESPACE, "a", action, rollout)).actions
        action["status"] = patch.status  # type: ignore[union-attr] # the one action is a status write
        self.actions.append(action)
        return dict(patch.status)  # type: ignore[union-attr]

    def turn(self, times: int = 1) -> Plan:
        """Time passes, pods come up, routers follow, the operator looks."""
        plan = Plan()
        for _ in range(times):
            for name in sorted(self.routers):
                self.router_takes_routes(name)
            self.controllers()
            for name in sorted(self.pods):
                self.pod_ready(name)
                self.pod_ends(name)
            self.now += timedelta(seconds=2)
            plan = self.operator_pass()
        return plan

    def until(self, phase: str, step: str | None = None) -> dict[str, Any]:
        """Turn until the last run is there; returns its status."""
        for _ in range(60):
            status: dict[str, Any] = self.rollouts()[-1].get("status") or {} if self.rollouts() else {}
            if status.get("phase") == phase and step in (None, status["step"]):
                return status
            self.turn()
        raise AssertionError(f"the run is at {status}")

    def weights(self) -> dict[str, int]:
        """The written shares of traffic."""
        routes = parse_routes(json.loads(self.children["ConfigMap", "chat-routes"]["data"][ROUTES_KEY]))
        return {item.revision: item.weight for item in routes.weights}

    def pods_of(self, revision: str) -> int:
        """Engine pods of a revision."""
        return sum(pod["metadata"]["labels"][LABEL_REVISION] == revision for pod in self.engines().values())


@pytest.fixture
def world() -> RunWorld:
    """A deployment of two replicas that serves and has just been changed."""
    made = RunWorld()
    made.edit(lambda spec: spec.update(restartToken="two"))
    return made


def test_a_change_opens_one_run_with_a_frozen_plan(world: RunWorld) -> None:
    old = world.serving()
    world.turn(4)
    (rollout,) = world.rollouts()
    assert rollout["spec"]["stable"]["revision"] == old
    assert [step["name"] for step in rollout["spec"]["plan"]["steps"]] == ["isolated", "half", "all"]
    world.edit(lambda spec: spec.update(rollout=build.AT_ONCE))
    world.turn(3)
    assert len(world.rollouts()) == 1
    assert [step["name"] for step in world.rollouts()[0]["spec"]["plan"]["steps"]] == ["isolated", "half", "all"]


def test_an_isolated_candidate_runs_one_pod_and_gets_no_traffic(world: RunWorld) -> None:
    old = world.serving()
    world.until("Progressing", "isolated")
    world.operator_pass()
    world.controllers()
    candidate = world.rollouts()[-1]["spec"]["candidate"]["revision"]
    assert world.pods_of(candidate) == 1
    assert world.weights() == {old: 100}


def test_traffic_is_split_and_an_errors_gate_waits_for_enough_requests(world: RunWorld) -> None:
    old = world.serving() or ""
    status = world.until("Progressing", "half")
    candidate = world.rollouts()[-1]["spec"]["candidate"]["revision"]
    world.turn(6)
    assert world.weights() == {old: 50, candidate: 50}
    status = world.rollouts()[-1]["status"]
    assert (status["step"], status["gates"][0]["verdict"]) == ("half", "Inconclusive")
    assert "needs 10 requests" in status["message"]
    world.counts = {old: (100, 0), candidate: (100, 0)}
    assert world.until("Progressing", "all")["history"][-1]["gates"][0]["verdict"] == "Pass"


def test_errors_of_the_candidate_bring_the_traffic_back_and_reject_it(world: RunWorld) -> None:
    old = world.serving() or ""
    world.until("Progressing", "half")
    candidate = world.rollouts()[-1]["spec"]["candidate"]["revision"]
    world.turn(4)
    world.counts = {old: (100, 0), candidate: (100, 30)}
    world.turn(1)
    assert world.weights() == {old: 100}, "the traffic is back in the pass that sees the errors"
    status = world.until("RolledBack")
    assert status["end"] == "GateFailed"
    assert "30 of 100 requests on the candidate failed" in status["message"]
    world.turn(3)
    assert world.pods_of(candidate) == 0
    assert world.document["status"]["rejectedRevisions"] == [candidate]
    stalled = find(world.document["status"]["conditions"], ConditionType.STALLED)
    assert stalled is not None
    assert stalled["reason"] == "RevisionRejected"
    assert len(world.rollouts()) == 1
    assert world.condition(ConditionType.SERVABLE) == "True"


def test_a_rejected_revision_is_tried_again_after_retry(world: RunWorld) -> None:
    world.until("Progressing", "half")
    assert world.say("abort")["phase"] == "Accepted"
    world.until("RolledBack")
    world.turn(3)
    assert len(world.rollouts()) == 1
    assert world.say("retry")["phase"] == "Accepted"
    world.turn(3)
    assert [item["metadata"]["name"].rpartition("-")[2] for item in world.rollouts()] == ["1", "2"]


def test_a_changed_spec_leaves_a_rejected_revision_behind(world: RunWorld) -> None:
    world.until("Progressing", "half")
    world.say("abort")
    world.until("RolledBack")
    world.edit(lambda spec: spec.update(restartToken="three"))
    world.turn(3)
    assert len(world.rollouts()) == 2


def test_an_approval_gate_holds_until_somebody_approves_this_step(world: RunWorld) -> None:
    candidate = _at_all(world)
    world.turn(10)
    status = world.rollouts()[-1]["status"]
    assert (status["step"], status["gates"][0]["verdict"]) == ("all", "Hold")
    assert world.say("approve", step="half")["phase"] == "Refused"
    assert world.say("approve")["step"] == "all"
    world.until("Soaking")
    assert world.pods_of(world.rollouts()[-1]["spec"]["stable"]["revision"]) == 2
    world.until("Completed")
    world.settle()
    assert world.document["status"]["stableRevision"] == candidate
    assert world.weights() == {candidate: 100}


def test_a_paused_run_waits_and_still_goes_back(world: RunWorld) -> None:
    world.until("Progressing", "half")
    assert world.say("pause")["phase"] == "Accepted"
    world.turn(5)
    assert world.rollouts()[-1]["status"]["phase"] == "Paused"
    assert world.say("resume")["phase"] == "Accepted"
    world.turn(2)
    assert world.rollouts()[-1]["status"]["phase"] == "Progressing"
    world.say("pause")
    world.turn(1)
    world.say("abort")
    world.until("RolledBack")


def test_a_spec_that_goes_back_takes_the_run_back_without_rejecting(world: RunWorld) -> None:
    old = world.serving()
    world.until("Progressing", "half")
    world.turn(4)
    world.edit(lambda spec: spec.pop("restartToken"))
    world.turn(1)
    assert world.weights() == {old: 100}
    assert world.until("Superseded")["end"] == "Reverted"
    world.settle()
    assert "rejectedRevisions" not in world.document["status"]
    assert world.condition(ConditionType.READY) == "True"


def test_what_still_runs_of_a_revision_that_comes_back_is_kept_and_gets_no_traffic_before_its_step(
    world: RunWorld,
) -> None:
    first = world.serving() or ""
    _at_all(world)
    world.say("approve")
    world.until("Completed")
    second = world.serving() or ""
    world.edit(lambda spec: spec.pop("restartToken"))
    for _ in range(4):
        world.operator_pass()
        assert ("Deployment", f"chat-engine-{first}") in world.children
        assert world.weights() == {second: 100}
    assert world.until("Progressing", "half")["stepIndex"] == 1


def test_a_third_revision_ends_the_run_and_opens_its_own(world: RunWorld) -> None:
    world.until("Progressing", "half")
    world.edit(lambda spec: spec.update(restartToken="three"))
    world.turn(10)
    first, second = world.rollouts()
    assert first["status"]["end"] == "Replaced"
    assert second["spec"]["stable"] == first["spec"]["stable"]


def test_pods_that_do_not_come_up_in_time_end_the_run(world: RunWorld) -> None:
    world.open_run()
    for _ in range(40):
        world.now += timedelta(seconds=2)
        world.operator_pass()
        world.controllers()
    status = world.rollouts()[-1]["status"]
    assert (status["phase"], status["end"]) == ("RolledBack", "ProgressDeadlineExceeded")


def test_a_default_that_moved_is_held_with_key_values_and_both_ways_out() -> None:
    world = RunWorld()
    moved = build.release("v2", image="registry.test/engine:0.2.0", defaults=[_defaults(max_running=64)])
    world.parts = {"release": moved}
    world.edit(lambda spec: spec.update(engineReleaseRef={"name": "v2"}))
    world.turn(6)
    status = world.rollouts()[-1]["status"]
    assert status["phase"] == "Preflight"
    for part in ("max_running from 16 to 64", "spec.engine.config.max_running (to 16", "spec.rollout.acceptChanges"):
        assert part in status["message"]
    stalled = find(world.document["status"]["conditions"], ConditionType.STALLED)
    assert stalled is not None
    assert stalled["reason"] == "PreflightBlocked"
    assert world.pods_of(world.rollouts()[-1]["spec"]["candidate"]["revision"]) == 0
    world.edit(lambda spec: spec.update(rollout={**STAGED, "acceptChanges": ["max_running"]}))
    assert world.until("Progressing")["notes"] == [
        "accepted: release v2 moves the default of max_running from 16 to 64"
    ]


def test_a_pinned_key_is_no_moved_default() -> None:
    world = RunWorld(scheduling={"maxRunning": 16})
    world.parts = {
        "release": build.release("v2", image="registry.test/engine:0.2.0", defaults=[_defaults(max_running=64)])
    }
    world.edit(lambda spec: spec.update(engineReleaseRef={"name": "v2"}))
    world.until("Progressing")


@pytest.mark.parametrize(
    ("issue", "blocks"),
    [
        ({"severity": "Block"}, True),
        ({"severity": "Warn"}, False),
        ({"severity": "Block", "expires": "2020-01-01"}, False),
        ({"severity": "Block", "match": {"architectures": ["sm80"]}}, False),
        ({"severity": "Block", "match": {"models": ["ti*"], "precisions": ["bf16"]}}, True),
        ({"severity": "Block", "match": {"config": {"max_running": 99}}}, False),
    ],
)
def test_known_issues_block_where_they_match(issue: dict[str, Any], blocks: bool) -> None:
    world = RunWorld()
    known = [{"id": "FB-1", "summary": "answers never end", **issue}]
    world.parts = {"release": build.release("v2", image="registry.test/engine:0.2.0", knownIssues=known)}
    world.edit(lambda spec: spec.update(engineReleaseRef={"name": "v2"}))
    world.turn(6)
    status = world.rollouts()[-1]["status"]
    assert (status["phase"] == "Preflight") is blocks
    assert ("known issue FB-1" in status["message"]) is blocks
    if blocks:
        world.edit(lambda spec: spec.update(rollout={**STAGED, "acceptIssues": ["FB-1"]}))
        world.until("Progressing")


def test_contradictory_steps_are_refused_by_field(world: RunWorld) -> None:
    steps = [{"name": "a", "capacity": "10%", "traffic": 50}, {"name": "b", "capacity": "100%", "traffic": 100}]
    world.edit(lambda spec: spec.update(rollout={"steps": steps}))
    world.turn(1)
    stalled = find(world.document["status"]["conditions"], ConditionType.STALLED)
    assert stalled is not None
    assert "spec.rollout.steps[0].traffic" in stalled["message"]


@pytest.mark.parametrize("verb", ["pause", "resume", "abort", "approve"])
def test_verbs_on_a_finished_run_are_refused(world: RunWorld, verb: str) -> None:
    world.until("Progressing")
    world.say("abort")
    world.until("RolledBack")
    status = world.say(verb)
    assert status["phase"] == "Refused"
    assert "is over" in status["message"]


def test_an_action_for_an_unknown_run_or_an_earlier_namesake_is_refused(world: RunWorld) -> None:
    world.until("Progressing")
    assert "earlier one" in world.say("pause", rolloutRef={"name": "x", "uid": "other"})["message"]
    action = {**world.actions[0], "status": {}}
    (patch,) = reconcile_action(ActionSnapshot(build.NAMESPACE, "a", action, None)).actions
    assert "does not exist" in patch.status["message"]  # type: ignore[union-attr]


def test_a_run_of_a_newer_operator_is_held_as_it_is(world: RunWorld) -> None:
    world.until("Progressing", "half")
    world.turn(4)
    before, pods = world.weights(), dict(world.pods)
    world.rollouts()[-1]["status"]["phase"] = "Teleporting"
    plan = world.turn(5)
    assert world.weights() == before
    assert world.pods.keys() == pods.keys()
    stalled = find(world.document["status"]["conditions"], ConditionType.STALLED)
    assert stalled is not None
    assert stalled["reason"] == "RolloutUnreadable"
    assert plan.actions == ()


def test_a_run_tells_its_story_in_events(world: RunWorld) -> None:
    told: list[str] = []
    for _ in range(12):
        plan = world.turn()
        told += [action.reason for action in plan.actions if isinstance(action, Emit)]
    assert told[:2] == ["RolloutOpened", "RevisionCreated"] or "RolloutOpened" in told
    assert "RolloutProgressing" in told


def test_every_status_of_a_run_can_be_read_back(world: RunWorld) -> None:
    _at_all(world)
    world.say("approve")
    world.until("Completed")
    run = read_run(world.rollouts()[-1])
    assert not hasattr(run, "message"), run


def _at_all(world: RunWorld) -> str:
    old = world.serving() or ""
    world.until("Progressing", "half")
    candidate: str = world.rollouts()[-1]["spec"]["candidate"]["revision"]
    world.turn(4)
    world.counts = {old: (100, 0), candidate: (100, 0)}
    world.until("Progressing", "all")
    return candidate


def _defaults(**values: Any) -> dict[str, Any]:
    return {"architecture": "cpu", "values": {"max_running": 16, "kv_cache_bytes": 268435456, **values}}
