"""The status of a ModelDeployment, computed whole from what a pass saw and decided.

Nothing is read back from text; of the old status only `stableRevision`, the old `Servable` (while no router answers)
and the times of unchanged conditions are carried over. Called by `reconcile`, which writes it only when it differs.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from forebay.contract.names import ROLE_ENGINE, ROLE_ROUTER
from forebay.operator.conditions import (
    MISSING_REFERENCE,
    MODEL_PROBLEM,
    ROLLOUT_PROBLEM,
    Condition,
    ConditionType,
    Reason,
    Status,
    find,
    merge,
)
from forebay.operator.course import RunReport
from forebay.operator.desired.metadata import Owner, revision_of, selector
from forebay.operator.effective import Effective
from forebay.operator.observed import Observed, PodCounts, pod_condition
from forebay.operator.references import Problem
from forebay.operator.rollout.plan import Phase, RolloutStep
from forebay.operator.snapshot import Json

MAX_ROLES: Final = 32


@dataclass(frozen=True, slots=True)
class Facts:
    """What the status is computed from.

    - `spec_problem`: why the spec cannot be realised; `pod_problem`: why pods of the target do not come up;
      `router_problem`: the same for routers.
    - `target`: the revision that the spec asks for, None while unknown; `step`: what this pass decided.
    - `epoch`: epoch of the routes that are written; `confirmed`: all routers report it.
    - `blocked`: objects of an earlier owner that must go first.
    """

    owner: Owner
    generation: int
    replicas: int
    observed: Observed
    step: RolloutStep
    old: Json
    target: str | None
    stable: str | None
    serving: str | None
    confirmed: bool
    effective: Effective | None
    renderer_version: int | None
    router: Json | None
    router_replicas: int
    router_revision: str | None
    spec_problem: Problem | None
    pod_problem: Problem | None
    router_problem: Problem | None
    blocked: tuple[str, ...]
    run: RunReport | None = None


def deployment_status(facts: Facts, now: datetime) -> dict[str, Any]:
    """The whole status. Optional fields are left out rather than null."""
    counts = facts.observed.counts(facts.observed.engines)
    status: dict[str, Any] = {
        "observedGeneration": facts.generation,
        "replicas": counts.live,
        "selector": ",".join(f"{key}={value}" for key, value in sorted(selector(facts.owner, ROLE_ENGINE).items())),
        "url": f"http://{facts.owner.name}.{facts.owner.namespace}.svc",
        "stableRevision": facts.stable,
        "targetRevision": facts.target,
        "rolloutRef": {"name": facts.run.name} if facts.run is not None and facts.run.name else None,
        "rejectedRevisions": list(facts.run.rejected) if facts.run is not None and facts.run.rejected else None,
        "roles": _roles(facts),
        "effective": facts.effective.to_status() if facts.effective else facts.old.get("effective"),
        "rendererVersion": facts.renderer_version,
        "conditions": merge(facts.old.get("conditions") or [], conditions(facts), facts.generation, now),
    }
    return {key: value for key, value in status.items() if value is not None}


def is_settled(facts: Facts) -> bool:
    """Whether the spec is fully realised: one revision, all of it ready and routable, routers up to date."""
    if facts.target is None or facts.step.phase is not Phase.SETTLED or not facts.confirmed:
        return False
    counts = facts.observed.counts(facts.observed.engines, facts.target)
    routable = facts.observed.routable_by_all(facts.target)
    total = facts.observed.counts(facts.observed.engines)
    return (
        counts.ready == counts.live == facts.replicas
        and total.draining == 0
        and routable == facts.replicas
        and _routers_are_current(facts)
        and not facts.blocked
    )


def conditions(facts: Facts) -> list[Condition]:
    """All conditions that apply, in the order in which they are shown."""
    problem = facts.spec_problem or facts.pod_problem or facts.router_problem
    found = [_ready(facts, problem), _servable(facts)]
    found += _kstatus(facts, problem)
    if facts.target is not None and facts.replicas > 0:
        found += [_scheduled(facts), _model_cached(facts)]
    if facts.router is not None:
        found.append(_router_synced(facts))
    if facts.run is not None:
        found.append(_gates_passed(facts.run))
    return found


def _gates_passed(run: RunReport) -> Condition:
    if run.reason is Reason.ROLLOUT_DONE:
        text = f"Rollout {run.name} is over"
        return Condition(ConditionType.GATES_PASSED, "True", run.reason, text)
    status: Status = "False" if run.needs_person else "Unknown"
    return Condition(ConditionType.GATES_PASSED, status, run.reason, run.message)


def _ready(facts: Facts, problem: Problem | None) -> Condition:
    if problem is not None:
        return Condition(ConditionType.READY, "False", problem.reason, problem.message)
    if is_settled(facts):
        if facts.replicas == 0:
            return Condition(ConditionType.READY, "True", Reason.SCALED_TO_ZERO, "scaled to zero as the spec asks")
        return Condition(
            ConditionType.READY,
            "True",
            Reason.REALISED,
            f"{facts.replicas} of {facts.replicas} engines of revision {facts.target} are routable",
        )
    reason, message = _progress(facts)
    return Condition(ConditionType.READY, "False", reason, message)


def _progress(facts: Facts) -> tuple[Reason, str]:
    """What the deployment is doing or waiting for."""
    if facts.blocked:
        return Reason.PROGRESSING, f"waiting for objects of an earlier owner to go: {', '.join(facts.blocked)}"
    if facts.run is not None and facts.run.reason is not Reason.ROLLOUT_DONE:
        return facts.run.reason, facts.run.message
    observed, target, total = facts.observed, facts.target or "", facts.replicas
    counts = observed.counts(observed.engines, target)
    seen = (
        f"{counts.ready} of {total} engines of revision {target} are ready, {observed.routable_by_all(target)} routable"
    )
    match facts.step.phase:
        case Phase.STARTING:
            return Reason.STARTING, seen
        case Phase.CONFIRMING:
            return Reason.PROGRESSING, f"revision {target} gets the traffic; waiting for all routers to confirm"
        case Phase.DRAINING:
            return Reason.DRAINING, f"revision {target} has the traffic; older revisions finish their requests"
        case Phase.HOLDING | Phase.SETTLED | Phase.ROLLING | Phase.REJECTED:
            pass
    draining = observed.counts(observed.engines).draining
    if draining > 0:
        return Reason.DRAINING, f"{seen}; {draining} older engines finish their requests"
    if not _routers_are_current(facts):
        return Reason.PROGRESSING, "routers are being replaced or are not ready"
    if facts.stable is None:
        return Reason.STARTING, seen
    return (Reason.SCALING if counts.live != total else Reason.PROGRESSING), seen


def _kstatus(facts: Facts, problem: Problem | None) -> list[Condition]:
    """`Reconciling` or `Stalled`, or neither when the spec is realised."""
    if problem is not None:
        waits = problem.reason in MISSING_REFERENCE or problem.reason is Reason.UNSCHEDULABLE
        kind = ConditionType.RECONCILING if waits else ConditionType.STALLED
        return [Condition(kind, "True", problem.reason, problem.message)]
    if is_settled(facts):
        return []
    reason, message = _progress(facts)
    if reason in ROLLOUT_PROBLEM:
        return [Condition(ConditionType.STALLED, "True", reason, message)]
    return [Condition(ConditionType.RECONCILING, "True", reason, message)]


def _servable(facts: Facts) -> Condition:
    kind = ConditionType.SERVABLE
    serving = facts.serving
    if serving is None:
        return Condition(kind, "False", Reason.STARTING, "no revision was started yet")
    routers = facts.observed.counts(facts.observed.routers)
    engines = facts.observed.counts(facts.observed.engines, serving)
    routable = facts.observed.routable_by_any(serving)
    was_true = (find(facts.old.get("conditions") or [], kind) or {}).get("status") == "True"
    # It turns true only when routers use the written routes; while traffic moves, those of before still answer.
    if routers.ready > 0 and routable > 0 and (was_true or facts.confirmed):
        return Condition(kind, "True", Reason.ROUTABLE, f"revision {serving} answers")
    if facts.replicas == 0 and engines.live == 0:
        return Condition(kind, "False", Reason.SCALED_TO_ZERO, "spec.replicas is 0")
    if facts.stable is None:
        return Condition(kind, "False", Reason.STARTING, f"revision {serving} has not answered yet")
    if routers.ready == 0:
        return Condition(kind, "False", Reason.ROUTER_NOT_READY, "no router pod is ready")
    if engines.ready == 0:
        return Condition(kind, "False", Reason.NO_ENDPOINTS, f"no engine of revision {serving} is ready")
    if facts.observed.missing:
        # A router that does not answer the operator may be the one that answers requests: what was true stays true.
        if was_true:
            return Condition(kind, "True", Reason.ROUTABLE, f"revision {serving} answers")
        return Condition(kind, "False", Reason.ROUTER_UNREACHABLE, "not every router answers the operator")
    return Condition(kind, "False", Reason.NOT_ROUTABLE, f"routers cannot reach engines of revision {serving}")


def _scheduled(facts: Facts) -> Condition:
    kind = ConditionType.SCHEDULED
    problem = facts.pod_problem
    if problem is not None and problem.reason in {Reason.UNSCHEDULABLE, Reason.PODS_REFUSED}:
        return Condition(kind, "False", problem.reason, problem.message)
    pods = [pod for pod in facts.observed.engines if revision_of(pod) == facts.target]
    placed = sum(pod_condition(pod, "PodScheduled").get("status") == "True" for pod in pods)
    if placed < facts.replicas:
        return Condition(kind, "False", Reason.PODS_PENDING, f"{placed} of {facts.replicas} pods have a node")
    return Condition(kind, "True", Reason.ALL_SCHEDULED, f"all pods of revision {facts.target} have a node")


def _model_cached(facts: Facts) -> Condition:
    kind = ConditionType.MODEL_CACHED
    problem = facts.pod_problem
    if problem is not None and problem.reason in MODEL_PROBLEM:
        return Condition(kind, "False", problem.reason, problem.message)
    pods = [pod for pod in facts.observed.engines if revision_of(pod) == facts.target]
    started = sum(_has_started(pod) for pod in pods)
    if started < facts.replicas:
        return Condition(
            kind, "False", Reason.MODEL_PENDING, f"the weights are in place for {started} of {facts.replicas} pods"
        )
    return Condition(kind, "True", Reason.MODEL_AVAILABLE, "the weights are in place for all pods")


def _has_started(pod: Json) -> bool:
    """Whether the engine container ran at all: by then volumes are mounted and downloads are complete."""
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        states = (container.get("state") or {}, container.get("lastState") or {})
        if any("running" in state or "terminated" in state for state in states):
            return True
    return False


def _router_synced(facts: Facts) -> Condition:
    kind, observed = ConditionType.ROUTER_SYNCED, facts.observed
    if observed.counts(observed.routers).ready == 0:
        return Condition(kind, "False", Reason.ROUTER_NOT_READY, "no router pod is ready")
    if observed.missing:
        return Condition(
            kind,
            "False",
            Reason.ROUTER_UNREACHABLE,
            f"router {observed.missing[0]} does not answer the operator on its admin port",
        )
    if not facts.confirmed:
        return Condition(kind, "False", Reason.ROUTES_PENDING, "not every router has taken the routes yet")
    serving = facts.serving or ""
    ready = observed.counts(observed.engines, serving).ready
    routable = observed.routable_by_all(serving)
    if facts.replicas > 0 and ready == 0:
        return Condition(kind, "False", Reason.NO_ENDPOINTS, f"no engine of revision {serving} is ready")
    if routable < ready:
        return Condition(
            kind, "False", Reason.ENDPOINTS_PENDING, f"{routable} of {ready} engines of {serving} are routable"
        )
    return Condition(kind, "True", Reason.SYNCED, f"all routers route to {routable} engines of revision {serving}")


def _routers_are_current(facts: Facts) -> bool:
    if facts.router_revision is None:
        return False
    current = facts.observed.counts(facts.observed.routers, facts.router_revision)
    every = facts.observed.counts(facts.observed.routers)
    return current.ready == facts.router_replicas == every.live


def _roles(facts: Facts) -> list[dict[str, Any]]:
    """One entry for each role and revision that has pods or should have some, sorted."""
    observed, desired = facts.observed, dict(facts.step.replicas)
    revisions = {revision_of(pod) or "" for pod in observed.engines} | set(desired)
    roles = [
        _role(ROLE_ENGINE, name, desired.get(name, 0), observed.counts(observed.engines, name))
        | {"routable": observed.routable_by_all(name)}
        for name in sorted(revisions)
        if name
    ]
    routers = {revision_of(pod) or "" for pod in observed.routers}
    if facts.router_revision is not None:
        routers.add(facts.router_revision)
    for name in sorted(routers):
        wanted = facts.router_replicas if name == facts.router_revision else 0
        counts = observed.counts(observed.routers, name)
        roles.append(_role(ROLE_ROUTER, name, wanted, counts) | {"routable": counts.ready})
    return roles[:MAX_ROLES]


def _role(role: str, revision: str, desired: int, counts: PodCounts) -> dict[str, Any]:
    return {
        "name": role,
        "revision": revision,
        "desired": desired,
        "updated": counts.live,
        "ready": counts.ready,
        "draining": counts.draining,
    }
