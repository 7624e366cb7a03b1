"""One pass over one object: snapshot and time in, plan out. Pure; called by the queue's worker through `execute`.

The same snapshot and the same time always give the same plan, and a snapshot in which everything is as desired gives
an empty plan.
"""

from datetime import datetime

from forebay.operator.actions import Plan
from forebay.operator.snapshot import DeploymentSnapshot, GPUClassSnapshot, ModelSnapshot, ReleaseSnapshot


def reconcile_deployment(snapshot: DeploymentSnapshot, now: datetime) -> Plan:
    """Bring a ModelDeployment's children and status to what its spec says. `now` is timezone-aware."""
    if snapshot.deployment is None or snapshot.deployment["metadata"].get("deletionTimestamp"):
        return Plan()
    return Plan()


def reconcile_model(snapshot: ModelSnapshot, now: datetime) -> Plan:
    """Report on a Model: licence, and per checkpoint what its pods say."""
    return Plan()


def reconcile_gpu_class(snapshot: GPUClassSnapshot, now: datetime) -> Plan:
    """Report on a GPUClass: nodes that match, total and free devices, ambiguous nodes."""
    return Plan()


def reconcile_release(snapshot: ReleaseSnapshot, now: datetime) -> Plan:
    """Report on an EngineRelease: whether its entries are sound."""
    return Plan()
