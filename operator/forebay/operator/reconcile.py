"""One pass over one ModelDeployment: snapshot and time in, plan out. Pure; called by the queue's worker.

The same snapshot and the same time always give the same plan, and a snapshot in which everything is as desired gives
an empty plan. The order of actions is: what pods depend on, routes, workloads, deletions, status, events; killing the
operator between any two of them leads to the same end, because the next pass starts from what is there.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from forebay.contract.names import ROLE_ENGINE, ROLE_ROUTER
from forebay.contract.wire import Routes, RouteWeight
from forebay.operator.actions import Action, Plan
from forebay.operator.course import Course, set_course
from forebay.operator.desired.budgets import budgets
from forebay.operator.desired.engine import with_replicas
from forebay.operator.desired.kinds import DEPLOYMENT, ROLLOUT
from forebay.operator.desired.metadata import is_ours, revision_of, role_of
from forebay.operator.desired.networkpolicies import network_policies
from forebay.operator.desired.rbac import router_access
from forebay.operator.desired.router import router_objects, router_revision
from forebay.operator.desired.routes import RecordedRoutes, routes_object
from forebay.operator.diagnosis import diagnose, refused
from forebay.operator.diff import Difference, Key, compare, delete, key_of
from forebay.operator.effective import served_names
from forebay.operator.events import transitions
from forebay.operator.intent import Intent
from forebay.operator.inventory import reconcile_action, reconcile_gpu_class, reconcile_model, reconcile_release
from forebay.operator.looked import Looked, look
from forebay.operator.patch import patch_if_changed
from forebay.operator.references import Problem
from forebay.operator.revision import StoredRevision, surplus
from forebay.operator.rollout.plan import Phase, RolloutStep
from forebay.operator.rollout.record import surplus_runs
from forebay.operator.snapshot import DeploymentSnapshot, Json
from forebay.operator.status import Facts, deployment_status, is_settled

__all__ = [
    "reconcile_action",
    "reconcile_deployment",
    "reconcile_gpu_class",
    "reconcile_model",
    "reconcile_release",
]

POLL_S: Final = 2.0
"""Next look while routers or pods must confirm something; router reports raise no watch event."""
SOON_S: Final = 0.2
"""Next look after a run was opened or changed its phase or step."""
PROBLEM_POLL_S: Final = 10.0
"""Next look at pods that do not come up; what repairs them mostly raises a watch event first."""


def reconcile_deployment(snapshot: DeploymentSnapshot, now: datetime) -> Plan:
    """Bring a ModelDeployment's children and status to what its spec says. `now` is timezone-aware."""
    document = snapshot.deployment
    if document is None or document["metadata"].get("deletionTimestamp"):
        # Every child has an owner reference: Kubernetes removes them, and nothing may be created meanwhile.
        return Plan()
    state = look(snapshot, document, now)
    course = set_course(state)
    routes = _next_routes(state, course.step)
    change = _change(state, course, routes)
    facts = _facts(state, course, change)
    status = deployment_status(facts, now)
    actions: list[Action] = [*change.applies, *change.deletes, *course.writes]
    actions += patch_if_changed(document, status)
    actions += [*course.events, *transitions(document, status)]
    return Plan(tuple(actions), _requeue_s(course, facts, change))


def _next_routes(state: Looked, step: RolloutStep) -> RecordedRoutes | None:
    """The routes to write: the recorded ones where nothing changes, else the next epoch."""
    if step.serving is None or state.deployment is None:
        return state.routes
    models = served_names(state.owner.name, state.deployment.spec)
    weights = tuple(RouteWeight(revision, weight) for revision, weight in step.shares)
    recorded = state.routes
    if recorded is not None and (recorded.routes.models, recorded.routes.weights) == (models, weights):
        return recorded
    # Routers never go back to a lower epoch, so an epoch that one of them has seen is never used again.
    seen = [report.epoch for report in state.observed.reports]
    epoch = max([recorded.routes.epoch if recorded else 0, *seen]) + 1
    return RecordedRoutes(Routes(epoch, models, weights), state.now)


def _change(state: Looked, course: Course, routes: RecordedRoutes | None) -> Difference:
    if state.deployment is None or not course.step.replicas:
        return Difference((), (), ())
    wanted = dict(course.step.replicas)
    keep: list[Key] = [key_of(item) for item in state.snapshot.children if _is_kept(item, state, wanted)]
    change = compare(_desired(state, course, routes, wanted), keep, state.snapshot.children, state.owner)
    documents = [item.document for item in _surplus(state, wanted)]
    documents += [item.document for item in surplus_runs(state.runs)]
    old = tuple(delete(item, "beyond the history") for item in documents)
    return Difference(change.applies, change.deletes + old, change.blocked)


def _desired(state: Looked, course: Course, routes: RecordedRoutes | None, wanted: Mapping[str, int]) -> list[Json]:
    """Every object that should exist, in the order in which it is applied."""
    assert state.deployment is not None  # noqa: S101 - asked by the caller
    spec, settings, desired = state.deployment.spec, state.snapshot.settings, list[Json]()
    # A run keeps what it is about from the moment it opens.
    if state.fresh is not None and (state.fresh.revision in wanted or course.opened is not None):
        desired.append(state.fresh.document)
    desired += router_access(state.owner)
    desired += network_policies(state.owner, settings)
    desired += budgets(state.owner)
    if routes is not None:
        desired.append(routes_object(state.owner, routes))
    for name, replicas in wanted.items():
        revision = state.stored.get(name)
        if revision is not None:
            desired += _revision_objects(revision, replicas)
    desired += router_objects(state.owner, spec, settings)
    if course.opened is not None:
        desired.append(course.opened)
    return desired


def _surplus(state: Looked, wanted: Mapping[str, int]) -> tuple[StoredRevision, ...]:
    in_use = {*wanted, *state.workloads, *(name for name in (state.target, state.stable) if name is not None)}
    return surplus(state.stored, in_use)


def _is_kept(item: Json, state: Looked, wanted: Mapping[str, int]) -> bool:
    """Revisions and runs stay by their own history; what runs of a revision that nobody stored stays as it is."""
    if item["kind"] == ROLLOUT.kind:
        return True
    name = revision_of(item)
    if role_of(item) != ROLE_ENGINE or name is None:
        return False
    return item["kind"] == "ControllerRevision" or (name in wanted and name not in state.stored)


def _revision_objects(revision: StoredRevision, replicas: int) -> list[Json]:
    return [with_replicas(item, replicas) if item["kind"] == DEPLOYMENT.kind else item for item in revision.objects]


def _facts(state: Looked, course: Course, change: Difference) -> Facts:
    children = state.snapshot.children
    router = next(
        (c for c in children if c["kind"] == DEPLOYMENT.kind and role_of(c) == ROLE_ROUTER and is_ours(c, state.owner)),
        None,
    )
    target_pods = [pod for pod in state.observed.engines if revision_of(pod) == state.target]
    target_work = [item for name, item in state.workloads.items() if name == state.target]
    events = state.snapshot.events
    step = course.step
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
        run=course.report,
    )


def _router_replicas(state: Looked) -> int:
    spec = state.deployment.spec if state.deployment is not None else None
    return (spec.router.replicas if spec is not None and spec.router is not None else None) or 1


def _next_stable(state: Looked) -> str | None:
    """The serving revision once routers confirmed it and it answers; until then the one of before.

    While a run is open this is the revision that it started from.
    """
    if state.open_run is not None:
        return state.stable
    serving = state.serving
    if state.routes is None or serving is None or not state.confirmed:
        return state.stable
    return serving if state.observed.routable_by_any(serving) > 0 else state.stable


def _renderer_version(state: Looked) -> int | None:
    target = state.stored.get(state.target) if state.target is not None else None
    old: Any = (state.document.get("status") or {}).get("rendererVersion")
    return target.renderer_version if target is not None else old


def _requeue_s(course: Course, facts: Facts, change: Difference) -> float | None:
    """Poll while something is under way that raises no watch event; at rest wait for events only."""
    if course.opened is not None or course.events:
        return SOON_S
    if course.step.phase is Phase.HOLDING and not change.blocked:
        return None
    if facts.pod_problem is not None or facts.router_problem is not None:
        return PROBLEM_POLL_S
    return None if is_settled(facts) and not change.applies else POLL_S
