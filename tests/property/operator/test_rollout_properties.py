"""What the rollout holds in any order of readiness, deaths, edits, scaling and operator kills."""

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import operator_build as build
from forebay.contract.names import LABEL_REVISION, engine_name
from forebay.operator.conditions import ConditionType
from forebay.operator.reconcile import reconcile_deployment
from forebay.operator.rollout.plan import Phase, RevisionFacts, RolloutInput, plan_rollout
from operator_world import World, takes_requests

VARIANTS = (8, 16, 32)
POLICIES: tuple[dict[str, Any], ...] = (
    build.AT_ONCE,
    {
        "steps": [
            {"name": "isolated", "capacity": "1", "traffic": 0},
            {"name": "half", "capacity": "50%", "traffic": 50, "soakSeconds": 4},
            {"name": "all", "capacity": "100%", "traffic": 100},
        ],
        "bakeSeconds": 4,
    },
)
MACHINE_SETTINGS = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


class HealthyWorld(RuleBasedStateMachine):
    """Pods come up late but never die by themselves; the operator may be killed between any two writes."""

    @initialize(replicas=st.integers(1, 2), policy=st.sampled_from(POLICIES))
    def first_deployment_is_up(self, replicas: int, policy: dict[str, Any]) -> None:
        self.world = World()
        self.world.edit(lambda spec: spec.update(replicas=replicas, rollout=policy))
        self.world.settle()
        assert self.world.answers()

    @rule(value=st.sampled_from(VARIANTS))
    def the_spec_changes(self, value: int) -> None:
        self.world.edit(lambda spec: spec.update(scheduling={"maxRunning": value}))

    @rule(replicas=st.integers(1, 3))
    def somebody_scales(self, replicas: int) -> None:
        self.world.edit(lambda spec: spec.update(replicas=replicas))

    @rule(replicas=st.integers(1, 2))
    def somebody_scales_routers(self, replicas: int) -> None:
        self.world.edit(lambda spec: spec.update(router={"replicas": replicas}))

    @rule(stop_after=st.one_of(st.none(), st.integers(0, 18)))
    def the_operator_passes(self, stop_after: int | None) -> None:
        serving = self.world.serving()
        before = self._replicas_of(serving)
        busy = self._busy_revisions()
        self.world.operator_pass(stop_after)
        assert all(self._replicas_of(revision) > 0 for revision in busy), "a revision with open requests must wait"
        wanted = self.world.document["spec"].get("replicas", 1)
        if serving == self.world.serving():
            assert self._replicas_of(serving) >= min(before, wanted)

    def _busy_revisions(self) -> set[str]:
        """Revisions with open requests on a pod that nobody asked to go, by any router's report."""
        open_on = {pod for router in self.world.routers.values() for pod, count in router.inflight.items() if count}
        return {
            pod["metadata"]["labels"][LABEL_REVISION]
            for name, pod in self.world.engines().items()
            if name in open_on and "deletionTimestamp" not in pod["metadata"] and takes_requests(pod)
        }

    @rule()
    def all_but_the_routers_catch_up(self) -> None:
        self.world.operator_pass()
        self.world.controllers()
        for name in sorted(self.world.pods):
            self.world.pod_ready(name)

    def _replicas_of(self, revision: str | None) -> int:
        item = self.world.children.get(("Deployment", engine_name("chat", revision or "")))
        return 0 if item is None else int(item["spec"]["replicas"])

    @rule()
    def controllers_act(self) -> None:
        self.world.controllers()

    @rule(data=st.data())
    @precondition(lambda self: bool(self.world.pods))
    def a_pod_becomes_ready(self, data: st.DataObject) -> None:
        self.world.pod_ready(data.draw(st.sampled_from(sorted(self.world.pods))))

    @rule(data=st.data())
    @precondition(lambda self: bool(self.world.pods))
    def a_draining_pod_ends(self, data: st.DataObject) -> None:
        self.world.pod_ends(data.draw(st.sampled_from(sorted(self.world.pods))))

    @rule(data=st.data())
    @precondition(lambda self: bool(self.world.routers))
    def a_router_takes_the_routes(self, data: st.DataObject) -> None:
        self.world.router_takes_routes(data.draw(st.sampled_from(sorted(self.world.routers))))

    @rule(data=st.data(), open_requests=st.integers(0, 2))
    @precondition(lambda self: bool(self.world.routers) and bool(self.world.engines()))
    def requests_come_and_go(self, data: st.DataObject, open_requests: int) -> None:
        router = self.world.routers[data.draw(st.sampled_from(sorted(self.world.routers)))]
        router.inflight[data.draw(st.sampled_from(sorted(self.world.engines())))] = open_requests

    @invariant()
    def somebody_always_answers(self) -> None:
        assert self.world.answers()

    @invariant()
    def servable_stays_true(self) -> None:
        assert self.world.condition(ConditionType.SERVABLE) == "True"

    @invariant()
    def kstatus_reads_exactly_one_answer(self) -> None:
        kinds = (ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED)
        assert [self.world.condition(kind) for kind in kinds].count("True") == 1

    @invariant()
    def the_same_snapshot_gives_the_same_plan(self) -> None:
        snapshot = self.world.snapshot()
        assert reconcile_deployment(snapshot, self.world.now) == reconcile_deployment(snapshot, self.world.now)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.settle()
        assert len({pod["metadata"]["labels"]["forebay.dev/revision"] for pod in self.world.engines().values()}) == 1
        assert len([key for key in self.world.children if key[0] == "Deployment"]) == 2
        assert self.world.operator_pass().actions == ()


class UnhealthyWorld(HealthyWorld):
    """As before, and any pod may die at any time; then answers can be lost, but never by the operator's doing."""

    @rule(data=st.data())
    @precondition(lambda self: bool(self.world.pods))
    def a_pod_dies(self, data: st.DataObject) -> None:
        self.world.pod_dies(data.draw(st.sampled_from(sorted(self.world.pods))))

    @invariant()
    def somebody_always_answers(self) -> None:
        """Does not hold when pods die."""

    @invariant()
    def servable_stays_true(self) -> None:
        """Does not hold when pods die."""


TestHealthyWorld = HealthyWorld.TestCase
TestHealthyWorld.settings = MACHINE_SETTINGS
TestUnhealthyWorld = UnhealthyWorld.TestCase
TestUnhealthyWorld.settings = MACHINE_SETTINGS

REVISIONS = ("a", "b", "c")
FACTS = st.builds(
    RevisionFacts,
    revision=st.just("a"),
    stored=st.booleans(),
    exists=st.booleans(),
    desired=st.integers(0, 4),
    pods=st.integers(0, 4),
    ready=st.integers(0, 4),
    routable=st.integers(0, 4),
    inflight=st.integers(0, 3),
)


@st.composite
def rollout_inputs(draw: st.DrawFn) -> RolloutInput:
    """Any input that observation can give: counts agree with each other."""
    facts = []
    for name in draw(st.lists(st.sampled_from(REVISIONS), unique=True)):
        raw = draw(FACTS)
        pods = raw.pods
        ready = min(raw.ready, pods)
        facts.append(
            RevisionFacts(
                name, raw.stored, raw.exists, raw.desired, pods, ready, min(raw.routable, ready), raw.inflight
            )
        )
    serving = draw(st.one_of(st.none(), st.sampled_from(REVISIONS)))
    return RolloutInput(
        # Traffic moves between revisions that served by a run only, so the planner never sees such a target.
        target=draw(st.sampled_from((None, serving))),
        replicas=draw(st.integers(0, 4)),
        serving=serving,
        stable=draw(st.one_of(st.none(), st.sampled_from(REVISIONS))),
        confirmed=draw(st.booleans()),
        drain_overdue=draw(st.booleans()),
        revisions=tuple(sorted(facts, key=lambda item: item.revision)),
    )


def _facts_of(given_input: RolloutInput, name: str | None) -> RevisionFacts | None:
    return next((item for item in given_input.revisions if item.revision == name), None)


@given(rollout_inputs())
def test_a_revision_that_serves_with_ready_pods_is_neither_removed_nor_shrunk(case: RolloutInput) -> None:
    serving = _facts_of(case, case.serving)
    step = plan_rollout(case)
    if serving is None or not serving.exists or serving.ready == 0:
        return
    replicas = dict(step.replicas)
    assert serving.revision in replicas
    assert replicas[serving.revision] >= min(case.replicas, serving.desired)


@given(rollout_inputs())
def test_the_target_always_gets_all_its_replicas(case: RolloutInput) -> None:
    if case.target is not None:
        assert dict(plan_rollout(case).replicas)[case.target] == case.replicas


@given(rollout_inputs())
def test_a_spec_that_cannot_be_realised_moves_and_removes_nothing(case: RolloutInput) -> None:
    held = RolloutInput(
        None, case.replicas, case.serving, case.stable, case.confirmed, case.drain_overdue, case.revisions
    )
    step = plan_rollout(held)
    assert step.serving == case.serving
    assert step.phase is Phase.HOLDING
    replicas: dict[str, Any] = dict(step.replicas)
    for item in case.revisions:
        if item.exists and item.revision != case.serving:
            assert replicas[item.revision] == item.desired


@given(rollout_inputs())
def test_going_back_to_the_serving_revision_needs_no_new_pod_and_moves_no_traffic(case: RolloutInput) -> None:
    serving = _facts_of(case, case.serving)
    if serving is None or not serving.exists:
        return
    back = RolloutInput(
        case.serving, serving.desired, case.serving, case.stable, case.confirmed, case.drain_overdue, case.revisions
    )
    step = plan_rollout(back)
    assert step.serving == case.serving
    for name, count in step.replicas:
        facts = _facts_of(case, name)
        assert facts is not None
        assert count <= facts.desired or name == case.serving
