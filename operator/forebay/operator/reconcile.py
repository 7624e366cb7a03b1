"""One pass over one ModelDeployment: snapshot and time in, plan out. Pure; called by the queue's worker.

The same snapshot and the same time always give the same plan, and a snapshot in which everything is as desired gives
an empty plan. The order of actions is: what pods depend on, routes, workloads, deletions, status, events; killing the
operator between any two of them leads to the same end, because the next pass starts from what is there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from forebay.api.modeldeployment import ModelDeployment
from forebay.contract.names import ROLE_ENGINE, ROLE_ROUTER
from forebay.contract.wire import Routes, RouteWeight
from forebay.operator.actions import Action, Plan
from forebay.operator.desired.budgets import budgets
from forebay.operator.desired.engine import with_replicas
from forebay.operator.desired.kinds import DEPLOYMENT
from forebay.operator.desired.metadata import Owner, is_ours, owner_of, revision_of, role_of
from forebay.operator.desired.networkpolicies import network_policies
from forebay.operator.desired.pods import longest_request_s
from forebay.operator.desired.rbac import router_access
from forebay.operator.desired.router import router_objects, router_revision
from forebay.operator.desired.routes import RecordedRoutes, read_routes, routes_object
from forebay.operator.diagnosis import diagnose, refused
from forebay.operator.diff import Difference, Key, compare, delete, key_of
from forebay.operator.effective import DEFAULT_MAX_SECONDS, served_names
from forebay.operator.events import transitions
from forebay.operator.intent import Intent, read_intent, render
from forebay.operator.inventory import reconcile_gpu_class, reconcile_model, reconcile_release
from forebay.operator.observed import Observed, read_observed
from forebay.operator.patch import patch_if_changed
from forebay.operator.references import Problem, read_deployment
from forebay.operator.revision import StoredRevision, read_revisions, surplus
from forebay.operator.rollout.plan import Phase, RevisionFacts, RolloutInput, RolloutStep, plan_rollout
from forebay.operator.snapshot import DeploymentSnapshot, Json
from forebay.operator.status import Facts, deployment_status, is_settled

__all__ = [
    "reconcile_deployment",
    "reconcile_gpu_class",
    "reconcile_model",
    "reconcile_release",
]

POLL_S: Final = 2.0
"""Next look while routers or pods must confirm something; router reports raise no watch event."""
PROBLEM_POLL_S: Final = 10.0
"""Next look at pods that do not come up; what repairs them mostly raises a watch event first."""
DRAIN_SLACK_S: Final = 60
"""Beyond the longest request, until a drain no longer waits for requests that routers still report."""
TRAFFIC: Final = 100
"""Weight of the one revision that gets all traffic."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """What a pass knows before it decides."""

    snapshot: DeploymentSnapshot
    now: datetime
    document: Json
    owner: Owner
    deployment: ModelDeployment | None
    intent: Intent | Problem
    observed: Observed
    workloads: Mapping[str, Json]
    stored: Mapping[str, StoredRevision]
    fresh: StoredRevision | None
    routes: RecordedRoutes | None

    @property
    def replicas(self) -> int:
        """Engine pods that the spec asks for."""
        if self.deployment is None or self.deployment.spec.replicas is None:
            return 1
        return self.deployment.spec.replicas

    @property
    def target(self) -> str | None:
        """The revision that the spec asks for, None while the spec cannot be realised."""
        return self.intent.revision if isinstance(self.intent, Intent) else None

    @property
    def stable(self) -> str | None:
        """The revision that was last seen serving."""
        return (self.document.get("status") or {}).get("stableRevision")

    @property
    def serving(self) -> str | None:
        """The revision that gets the traffic: by the written routes, or the last stable one where they are lost."""
        if self.routes is None:
            return self.stable
        return next((weight.revision for weight in self.routes.routes.weights if weight.weight > 0), None)

    @property
    def confirmed(self) -> bool:
        """Whether every router that takes traffic reports the written routes."""
        return self.routes is not None and self.observed.confirms(self.routes.routes.epoch)


def reconcile_deployment(snapshot: DeploymentSnapshot, now: datetime) -> Plan:
    """Bring a ModelDeployment's children and status to what its spec says. `now` is timezone-aware."""
    document = snapshot.deployment
    if document is None or document["metadata"].get("deletionTimestamp"):
        # Every child has an owner reference: Kubernetes removes them, and nothing may be created meanwhile.
        return Plan()
    state = _look(snapshot, document, now)
    step = plan_rollout(_rollout_input(state))
    routes = _next_routes(state, step)
    change = _change(state, step, routes)
    facts = _facts(state, step, change)
    status = deployment_status(facts, now)
    actions: list[Action] = [*change.applies, *change.deletes]
    actions += patch_if_changed(document, status)
    actions += transitions(document, status)
    return Plan(tuple(actions), _requeue_s(step, facts, change))


def _look(snapshot: DeploymentSnapshot, document: Json, now: datetime) -> _Pass:
    owner = owner_of(document)
    read = read_deployment(document)
    intent = read_intent(document, snapshot)
    stored = read_revisions(snapshot.children, owner)
    fresh = None
    if isinstance(intent, Intent) and intent.revision not in stored:
        number = max((item.number for item in stored.values()), default=0) + 1
        rendered = render(owner, intent, number, snapshot.settings)
        fresh = read_revisions([rendered], owner)[intent.revision]
    workloads = {
        name: item
        for item in snapshot.children
        if item["kind"] == DEPLOYMENT.kind
        and role_of(item) == ROLE_ENGINE
        and is_ours(item, owner)
        and (name := revision_of(item)) is not None
    }
    return _Pass(
        snapshot=snapshot,
        now=now,
        document=document,
        owner=owner,
        deployment=None if isinstance(read, Problem) else read,
        intent=intent,
        observed=read_observed(snapshot, owner),
        workloads=workloads,
        stored=stored if fresh is None else {**stored, fresh.revision: fresh},
        fresh=fresh,
        routes=read_routes((item for item in snapshot.children if is_ours(item, owner)), owner),
    )


def _rollout_input(state: _Pass) -> RolloutInput:
    observed = state.observed
    names = set(state.workloads) | {name for name in (state.target, state.serving) if name is not None}
    return RolloutInput(
        target=state.target,
        replicas=state.replicas,
        serving=state.serving,
        stable=state.stable,
        confirmed=state.confirmed,
        drain_overdue=_drain_overdue(state),
        revisions=tuple(_revision_facts(state, observed, name) for name in sorted(names)),
    )


def _revision_facts(state: _Pass, observed: Observed, name: str) -> RevisionFacts:
    counts = observed.counts(observed.engines, name)
    workload = state.workloads.get(name)
    return RevisionFacts(
        revision=name,
        stored=name in state.stored,
        exists=workload is not None,
        desired=int(workload["spec"].get("replicas", 1)) if workload is not None else 0,
        pods=counts.live + counts.draining,
        ready=counts.ready,
        routable=observed.routable_by_all(name),
        inflight=observed.inflight(name),
    )


def _drain_overdue(state: _Pass) -> bool:
    if state.routes is None:
        return False
    longest_s = DEFAULT_MAX_SECONDS
    if isinstance(state.intent, Intent):
        longest_s = longest_request_s(state.intent.effective)
    return state.now >= state.routes.since + timedelta(seconds=longest_s + DRAIN_SLACK_S)


def _next_routes(state: _Pass, step: RolloutStep) -> RecordedRoutes | None:
    """The routes to write: the recorded ones where nothing changes, else the next epoch."""
    if step.serving is None or state.deployment is None:
        return state.routes
    models = served_names(state.owner.name, state.deployment.spec)
    weights = (RouteWeight(step.serving, TRAFFIC),)
    recorded = state.routes
    if recorded is not None and (recorded.routes.models, recorded.routes.weights) == (models, weights):
        return recorded
    # Routers never go back to a lower epoch, so an epoch that one of them has seen is never used again.
    seen = [report.epoch for report in state.observed.reports]
    epoch = max([recorded.routes.epoch if recorded else 0, *seen]) + 1
    return RecordedRoutes(Routes(epoch, models, weights), state.now)


def _change(state: _Pass, step: RolloutStep, routes: RecordedRoutes | None) -> Difference:
    if state.deployment is None or not step.replicas:
        return Difference((), (), ())
    wanted = dict(step.replicas)
    desired: list[Json] = []
    keep: list[Key] = []
    if state.fresh is not None and state.fresh.revision in wanted:
        desired.append(state.fresh.document)
    spec, settings = state.deployment.spec, state.snapshot.settings
    desired += router_access(state.owner)
    desired += network_policies(state.owner, settings)
    desired += budgets(state.owner)
    if routes is not None:
        desired.append(routes_object(state.owner, routes))
    for name, replicas in wanted.items():
        revision = state.stored.get(name)
        if revision is not None:
            desired += _revision_objects(revision, replicas)
    keep += [key_of(item) for item in state.snapshot.children if _is_kept(item, state, wanted)]
    desired += router_objects(state.owner, spec, settings)
    change = compare(desired, keep, state.snapshot.children, state.owner)
    old = tuple(delete(item.document, "beyond the history") for item in _surplus(state, wanted))
    return Difference(change.applies, change.deletes + old, change.blocked)


def _surplus(state: _Pass, wanted: Mapping[str, int]) -> tuple[StoredRevision, ...]:
    in_use = {*wanted, *state.workloads, *(name for name in (state.target, state.stable) if name is not None)}
    return surplus(state.stored, in_use)


def _is_kept(item: Json, state: _Pass, wanted: Mapping[str, int]) -> bool:
    """Stored revisions stay by their own history; what runs of a revision that nobody stored stays as it is."""
    name = revision_of(item)
    if role_of(item) != ROLE_ENGINE or name is None:
        return False
    return item["kind"] == "ControllerRevision" or (name in wanted and name not in state.stored)


def _revision_objects(revision: StoredRevision, replicas: int) -> list[Json]:
    return [with_replicas(item, replicas) if item["kind"] == DEPLOYMENT.kind else item for item in revision.objects]


def _facts(state: _Pass, step: RolloutStep, change: Difference) -> Facts:
    children = state.snapshot.children
    router = next(
        (c for c in children if c["kind"] == DEPLOYMENT.kind and role_of(c) == ROLE_ROUTER and is_ours(c, state.owner)),
        None,
    )
    target_pods = [pod for pod in state.observed.engines if revision_of(pod) == state.target]
    target_work = [item for name, item in state.workloads.items() if name == state.target]
    events = state.snapshot.events
    serving = state.serving or step.serving
    return Facts(
        owner=state.owner,
        generation=state.document["metadata"].get("generation", 0),
        replicas=state.replicas,
        observed=state.observed,
        step=step,
        old=state.document.get("status") or {},
        target=state.target,
        stable=_next_stable(state),
        serving=serving,
        confirmed=state.confirmed,
        effective=state.intent.effective if isinstance(state.intent, Intent) else None,
        renderer_version=_renderer_version(state),
        router=router,
        router_replicas=_router_replicas(state),
        router_revision=router_revision(router) if router is not None else None,
        spec_problem=state.intent if isinstance(state.intent, Problem) else None,
        pod_problem=refused(target_work) or diagnose(target_pods, events),
        router_problem=refused([router] if router else []) or diagnose(state.observed.routers, events),
        blocked=change.blocked,
    )


def _router_replicas(state: _Pass) -> int:
    spec = state.deployment.spec if state.deployment is not None else None
    return (spec.router.replicas if spec is not None and spec.router is not None else None) or 1


def _next_stable(state: _Pass) -> str | None:
    """The serving revision once routers confirmed it and it answers; until then the one of before."""
    serving = state.serving
    if state.routes is None or serving is None or not state.confirmed:
        return state.stable
    return serving if state.observed.routable_by_any(serving) > 0 else state.stable


def _renderer_version(state: _Pass) -> int | None:
    target = state.stored.get(state.target) if state.target is not None else None
    old: Any = (state.document.get("status") or {}).get("rendererVersion")
    return target.renderer_version if target is not None else old


def _requeue_s(step: RolloutStep, facts: Facts, change: Difference) -> float | None:
    """Poll while something is under way that raises no watch event; at rest wait for events only."""
    if step.phase is Phase.HOLDING and not change.blocked:
        return None
    if facts.pod_problem is not None or facts.router_problem is not None:
        return PROBLEM_POLL_S
    return None if is_settled(facts) and not change.applies else POLL_S
