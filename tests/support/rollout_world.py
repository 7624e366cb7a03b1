"""A world of pods, routers and time around one rollout run: what can happen to it, and what must never happen.

Everything is drawn from one seed. Pods start late, die and are made again; routers confirm late; the clock jumps; the
operator dies between any two of its writes; people pause, resume, abort and change their minds; gates hold and fail.
After `storm` passes the weather is calm, and the run must end. `play` raises `AssertionError` with the history.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from forebay.operator.rollout.gates import GateResult, Verdict, judge
from forebay.operator.rollout.machine import Decision, RunFacts, advance
from forebay.operator.rollout.plan import RevisionFacts
from forebay.operator.rollout.policy import WHOLE, Capacity, Policy, Step, problem_of
from forebay.operator.rollout.run import End, Run, RunPhase

STABLE, CANDIDATE = "aaaaaaaaaa", "bbbbbbbbbb"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
MAX_CALM_PASSES = 4000
SERVED_BEFORE = 17
"""One world in so many starts with pods of the candidate."""


@dataclass
class Pod:
    """A pod that becomes routable at `ready_at`, in seconds of the world, and may serve `inflight` requests."""

    ready_at: float
    inflight: int = 0
    draining: bool = False


@dataclass
class World:
    """The observed world: true time apart from the operator's clock, pods by revision, routes as written."""

    random: random.Random
    replicas: int
    policy: Policy
    true_s: float = 0.0
    clock_skew_s: float = 0.0
    desired: dict[str, int] = field(default_factory=dict)
    pods: dict[str, list[Pod]] = field(default_factory=lambda: {STABLE: [], CANDIDATE: []})
    weights: dict[str, int] = field(default_factory=lambda: {STABLE: WHOLE})
    routes_at_s: float = 0.0
    confirm_at_s: float = 0.0
    run: Run = field(default_factory=lambda: Run(STABLE, CANDIDATE, RunPhase.PENDING, EPOCH))
    turn_back: tuple[End, str] | None = None
    preflight: str | None = None
    verdicts: list[Verdict] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    deaths: bool = False

    @property
    def now(self) -> datetime:
        """The operator's clock."""
        return EPOCH + timedelta(seconds=self.true_s + self.clock_skew_s)

    def routable(self, revision: str) -> int:
        """Pods that are ready and that routers can send to."""
        return sum(not pod.draining and pod.ready_at <= self.true_s for pod in self.pods[revision])

    def facts(self, revision: str) -> RevisionFacts:
        """What the operator sees of a revision."""
        pods = self.pods[revision]
        routable = self.routable(revision)
        return RevisionFacts(
            revision=revision,
            stored=True,
            exists=revision in self.desired,
            desired=self.desired.get(revision, 0),
            pods=len(pods),
            ready=routable,
            routable=routable,
            inflight=sum(pod.inflight for pod in pods),
        )

    def run_facts(self) -> RunFacts:
        """What the operator sees."""
        return RunFacts(
            now=self.now,
            replicas=self.replicas,
            stable=self.facts(STABLE),
            candidate=self.facts(CANDIDATE),
            weights=dict(self.weights),
            confirmed=self.true_s >= self.confirm_at_s,
            drain_overdue=self.true_s > self.routes_at_s + 700,
            preflight=self.preflight,
            judgement=judge([GateResult("drawn", verdict, "as drawn") for verdict in self.verdicts]),
            turn_back=self.turn_back,
        )

    def pass_once(self, *, writes: int = 3) -> Decision:
        """One pass of the operator that dies after `writes` of its three writes: routes, workloads, status."""
        given = self.run_facts()
        decision = advance(self.run, self.policy, given)
        assert decision == advance(self.run, self.policy, given), "the same input gave another decision"
        self.check(given, decision)
        if writes > 0 and dict(decision.weights) != self.weights:
            self.weights = dict(decision.weights)
            self.routes_at_s = self.true_s
            self.confirm_at_s = self.true_s + self.random.choice((0, 1, 5, 30))
        if writes > 1:
            self.scale(decision.pods)
        if writes > 2:
            self.run = decision.run
        self.history.append(
            f"{self.true_s:.0f}s {decision.run.phase} step {decision.run.step} pods {dict(decision.pods)} "
            f"weights {dict(decision.weights)} writes {writes} {decision.run.message}"
        )
        return decision

    def scale(self, pods: Mapping[str, int]) -> None:
        """Bring the workloads to these sizes; a revision that is absent goes."""
        for revision in (STABLE, CANDIDATE):
            if revision not in pods:
                self.desired.pop(revision, None)
            else:
                self.desired[revision] = pods[revision]
            live = [pod for pod in self.pods[revision] if not pod.draining]
            wanted = self.desired.get(revision, 0)
            for pod in live[wanted:]:
                pod.draining = True
            for _ in range(wanted - len(live)):
                self.pods[revision].append(Pod(self.true_s + self.random.choice((0, 2, 20, 200))))

    def move_on(self, seconds: float) -> None:
        """Time passes: requests end, drained pods go, dead pods are made again."""
        self.true_s += seconds
        for revision, pods in self.pods.items():
            carries = self.weights.get(revision, 0) > 0
            for pod in pods:
                busy = carries and not pod.draining and pod.ready_at <= self.true_s
                pod.inflight = self.random.randint(0, 3) if busy else max(0, pod.inflight - self.random.randint(0, 2))
            self.pods[revision] = [pod for pod in pods if not (pod.draining and pod.inflight == 0)]
        self.scale(dict(self.desired))

    def check(self, given: RunFacts, decision: Decision) -> None:
        """What must hold of every single decision."""
        if self.run.phase is not RunPhase.COMPLETED:
            assert decision.pods.get(STABLE) == self.replicas, "the stable revision lost replicas"
        assert sum(decision.weights.values()) == WHOLE, "the traffic is not whole"
        _check_rises(given, decision)
        _check_one_axis(self.run, given, decision)
        if given.turn_back is not None and not self.run.finished and given.stable.routable >= given.replicas:
            assert decision.weights == {STABLE: WHOLE}, "a warm stable revision did not get the traffic back at once"


def _check_rises(given: RunFacts, decision: Decision) -> None:
    """Traffic rises only on a revision that carries it."""
    weights, before = decision.weights, given.weights
    if weights.get(CANDIDATE, 0) > before.get(CANDIDATE, 0):
        asked = given.candidate.desired if given.candidate.exists else 0
        carried = WHOLE if given.replicas == 0 else min(asked, given.candidate.routable) * WHOLE / given.replicas
        excused = given.stable.routable == 0 or decision.run.phase in _WHOLE_TRAFFIC
        assert weights[CANDIDATE] <= carried or excused, (
            f"{weights[CANDIDATE]} % of the traffic on {given.candidate.routable} of {given.replicas} pods"
        )
    if weights.get(STABLE, 0) > before.get(STABLE, 0):
        able = given.stable.routable >= given.replicas or given.candidate.routable == 0
        assert able, "traffic went back to a revision that cannot carry it"


def _check_one_axis(run: Run, given: RunFacts, decision: Decision) -> None:
    """Capacity and traffic do not move together, except where somebody changes the number of replicas."""
    pods_now = {STABLE: given.stable.desired, CANDIDATE: given.candidate.desired}
    moved_pods = any(count != pods_now[revision] for revision, count in decision.pods.items())
    resized = given.stable.desired != given.replicas
    if not resized and not decision.run.finished and decision.run.step == run.step:
        moved_traffic = dict(decision.weights) != dict(given.weights)
        assert not (moved_pods and moved_traffic), "capacity and traffic moved in one decision"


_WHOLE_TRAFFIC = (RunPhase.SOAKING, RunPhase.COMPLETED)


def draw_policy(random_: random.Random) -> Policy:
    """A policy without contradictions."""
    shares = sorted(random_.sample(range(1, WHOLE), random_.randint(0, 3)))
    steps = [Step("isolated", Capacity(count=1), 0, random_.choice((0, 30)))] if random_.random() < 0.7 else []
    steps += [
        Step(f"s{share}", Capacity(percent=share), random_.randint(0, share), random_.choice((0, 60)))
        for share in shares
    ]
    traffic = 0
    for index, step in enumerate(steps):
        traffic = max(traffic, step.traffic)
        steps[index] = replace(step, traffic=min(traffic, step.capacity.percent or 0))
        traffic = steps[index].traffic
    steps.append(Step("all", Capacity(percent=WHOLE), WHOLE, random_.choice((0, 60))))
    policy = Policy(tuple(steps), random_.choice((0, 300)), random_.choice((60, 1800)))
    assert problem_of(policy.steps) is None, problem_of(policy.steps)
    return policy


def play(seed: int, storm: int = 40) -> World:
    """One life of a run; returns the world at rest."""
    random_ = random.Random(seed)
    world = World(random_, random_.randint(0, 6), draw_policy(random_))
    world.desired[STABLE] = world.replicas
    world.pods[STABLE] = [Pod(-1.0) for _ in range(world.replicas)]
    if seed % SERVED_BEFORE == 0:
        # The candidate is the revision of before: its pods are still there, wanted or on their way out.
        world.pods[CANDIDATE] = [Pod(-1.0, draining=seed % 2 == 0) for _ in range(2)]
        world.desired[CANDIDATE] = 0 if seed % 2 == 0 else 2
    has_deaths = random_.random() < 0.5
    try:
        for _ in range(storm):
            _weather(world, has_deaths=has_deaths)
            world.pass_once(writes=random_.choice((0, 1, 2, 3, 3, 3, 3, 3)))
            if not has_deaths:
                _check_floor(world)
            world.move_on(random_.choice((0.1, 1, 5, 60)))
        _calm(world)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}\n" + "\n".join(world.history[-30:])) from error
    return world


def _weather(world: World, *, has_deaths: bool) -> None:
    random_ = world.random
    _people(world)
    if random_.random() < 0.03:
        world.clock_skew_s += random_.choice((-3600, -5, 5, 3600))
    if has_deaths and random_.random() < 0.2:
        revision = random_.choice((STABLE, CANDIDATE))
        if world.pods[revision]:
            world.pods[revision].pop(random_.randrange(len(world.pods[revision])))


def _people(world: World) -> None:
    """Gates change their minds, and so do people."""
    random_ = world.random
    world.verdicts = [random_.choice((Verdict.PASS, Verdict.PASS, Verdict.HOLD, Verdict.INCONCLUSIVE))]
    if random_.random() < 0.01:
        world.verdicts.append(Verdict.FAIL)
    if world.preflight is None or random_.random() < 0.1:
        world.preflight = random_.choice((None, "", "", "a default moved"))
    if random_.random() < 0.03:
        world.run = replace(world.run, paused=not world.run.paused)
    if random_.random() < 0.02 and world.turn_back is None:
        world.turn_back = (random_.choice((End.ABORTED, End.REVERTED, End.REPLACED)), "drawn")
    if random_.random() < 0.03:
        world.replicas = random_.randint(0, 6)


def _check_floor(world: World) -> None:
    """Where no pod dies by itself and nobody resizes, every moment has pods for the share that each revision gets."""
    resizing = any(world.desired.get(revision) != world.replicas for revision in (STABLE,))
    if resizing or any(revision not in world.desired for revision in world.weights):
        return
    for revision, share in world.weights.items():
        needed = math.floor(world.desired[revision] * share / WHOLE) if revision == STABLE else 1
        grown = any(pod.ready_at > world.true_s for pod in world.pods[revision])
        assert grown or world.replicas == 0 or world.routable(revision) >= min(needed, world.replicas), (
            f"{revision} has {share} % of the traffic and {world.routable(revision)} pods"
        )


def _calm(world: World) -> None:
    """Nothing bad happens any more: the run must end, and only what serves may be left."""
    world.run = replace(world.run, paused=False)
    world.verdicts, world.preflight = [Verdict.PASS], ""
    for _ in range(MAX_CALM_PASSES):
        world.pass_once()
        if world.run.finished and _at_rest(world):
            break
        world.move_on(5)
    assert world.run.finished, "the run does not end"
    assert _at_rest(world), "the run ended and the world is not at rest"
    kept = CANDIDATE if world.run.phase is RunPhase.COMPLETED else STABLE
    assert world.weights == {kept: WHOLE}
    rejected = world.run.end is not None and world.run.end.rejects
    assert (world.run.phase is RunPhase.ROLLED_BACK) == rejected or world.run.phase is RunPhase.SUPERSEDED


def _at_rest(world: World) -> bool:
    kept = CANDIDATE if world.run.phase is RunPhase.COMPLETED else STABLE
    other = STABLE if kept == CANDIDATE else CANDIDATE
    alone = world.desired == {kept: world.replicas} and not world.pods[other]
    return alone and len(world.pods[kept]) == world.replicas == world.routable(kept)
