"""Condition types and reasons (closed sets) and the one place where transition times are kept.

kstatus: `Reconciling` and `Stalled` exist only while they are true; `Ready` is always there; a condition that does not
apply is left out. Every condition carries the generation it was computed for. Tests, dashboards and the health checks
of GitOps tools read types and reasons, never messages. Called by `status` and by every `reconcile_*`.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from forebay.contract.errors import Bug
from forebay.operator.snapshot import Json

Status = Literal["True", "False", "Unknown"]


class ConditionType(enum.StrEnum):
    """Types of conditions on Forebay's resources."""

    READY = "Ready"
    SERVABLE = "Servable"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    SCHEDULED = "Scheduled"
    MODEL_CACHED = "ModelCached"
    ROUTER_SYNCED = "RouterSynced"
    LICENSE_ACCEPTED = "LicenseAccepted"
    GATES_PASSED = "GatesPassed"


class Reason(enum.StrEnum):
    """Reasons of conditions; `REASONS` says which may stand on which type."""

    # The goal is reached.
    REALISED = "Realised"
    ROUTABLE = "Routable"
    ALL_SCHEDULED = "AllScheduled"
    MODEL_AVAILABLE = "ModelAvailable"
    SYNCED = "Synced"
    SCALED_TO_ZERO = "ScaledToZero"
    ACCEPTED = "Accepted"
    VALID = "Valid"
    NODES_FOUND = "NodesFound"

    # On the way.
    STARTING = "Starting"
    PROGRESSING = "Progressing"
    SCALING = "Scaling"
    DRAINING = "Draining"
    MODEL_PENDING = "ModelPending"
    PODS_PENDING = "PodsPending"
    ROUTES_PENDING = "RoutesPending"
    ENDPOINTS_PENDING = "EndpointsPending"
    NO_NODES = "NoNodes"

    # A reference is missing; the order in which resources are applied does not matter.
    MODEL_NOT_FOUND = "ModelNotFound"
    GPU_CLASS_NOT_FOUND = "GPUClassNotFound"
    ENGINE_RELEASE_NOT_FOUND = "EngineReleaseNotFound"

    # The spec cannot be realised as written.
    INVALID_SPEC = "InvalidSpec"
    INVALID_REFERENCE = "InvalidReference"
    LICENSE_NOT_ACCEPTED = "LicenseNotAccepted"
    PRECISION_NOT_IN_MODEL = "PrecisionNotInModel"
    PRECISION_NOT_ON_GPU_CLASS = "PrecisionNotOnGPUClass"
    PRECISION_NOT_IN_RELEASE = "PrecisionNotInRelease"
    ARCHITECTURE_NOT_COMPILED = "ArchitectureNotCompiled"
    UNKNOWN_ENGINE_CONFIG = "UnknownEngineConfig"
    INVALID_ENGINE_CONFIG = "InvalidEngineConfig"
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    POD_OVERRIDE_NOT_ALLOWED = "PodOverrideNotAllowed"
    AMBIGUOUS_NODES = "AmbiguousNodes"

    # Pods do not come up.
    UNSCHEDULABLE = "Unschedulable"
    PODS_REFUSED = "PodsRefused"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    MOUNT_FAILED = "MountFailed"
    FETCH_FAILED = "FetchFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    CRASH_LOOP = "CrashLoop"

    # Traffic does not reach an engine.
    ROUTER_NOT_READY = "RouterNotReady"
    ROUTER_UNREACHABLE = "RouterUnreachable"
    NO_ENDPOINTS = "NoEndpoints"
    NOT_ROUTABLE = "NotRoutable"

    # A change on its way to the traffic.
    ROLLOUT_PROGRESSING = "RolloutProgressing"
    ROLLOUT_PAUSED = "RolloutPaused"
    ROLLING_BACK = "RollingBack"
    ROLLOUT_DONE = "RolloutDone"
    PREFLIGHT_BLOCKED = "PreflightBlocked"
    REVISION_REJECTED = "RevisionRejected"
    ROLLOUT_UNREADABLE = "RolloutUnreadable"

    # The operator itself is hindered.
    PERMISSION_DENIED = "PermissionDenied"
    APPLY_REFUSED = "ApplyRefused"


MISSING_REFERENCE = frozenset({Reason.MODEL_NOT_FOUND, Reason.GPU_CLASS_NOT_FOUND, Reason.ENGINE_RELEASE_NOT_FOUND})
SPEC_PROBLEM = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.INVALID_REFERENCE,
        Reason.LICENSE_NOT_ACCEPTED,
        Reason.PRECISION_NOT_IN_MODEL,
        Reason.PRECISION_NOT_ON_GPU_CLASS,
        Reason.PRECISION_NOT_IN_RELEASE,
        Reason.ARCHITECTURE_NOT_COMPILED,
        Reason.UNKNOWN_ENGINE_CONFIG,
        Reason.INVALID_ENGINE_CONFIG,
        Reason.INSUFFICIENT_MEMORY,
        Reason.POD_OVERRIDE_NOT_ALLOWED,
    }
)
MODEL_PROBLEM = frozenset({Reason.MOUNT_FAILED, Reason.FETCH_FAILED})
POD_PROBLEM = MODEL_PROBLEM | {
    Reason.PODS_REFUSED,
    Reason.IMAGE_PULL_FAILED,
    Reason.CONTAINER_CONFIG_ERROR,
    Reason.OUT_OF_MEMORY,
    Reason.CRASH_LOOP,
}
ROUTER_PROBLEM = frozenset({Reason.ROUTER_NOT_READY, Reason.ROUTER_UNREACHABLE, Reason.NO_ENDPOINTS})
OPERATOR_PROBLEM = frozenset({Reason.PERMISSION_DENIED, Reason.APPLY_REFUSED})
PROGRESS = frozenset({Reason.STARTING, Reason.PROGRESSING, Reason.SCALING, Reason.DRAINING})
ROLLOUT_UNDER_WAY = frozenset({Reason.ROLLOUT_PROGRESSING, Reason.ROLLOUT_PAUSED, Reason.ROLLING_BACK})
ROLLOUT_PROBLEM = frozenset({Reason.PREFLIGHT_BLOCKED, Reason.REVISION_REJECTED, Reason.ROLLOUT_UNREADABLE})

REASONS: dict[ConditionType, frozenset[Reason]] = {
    ConditionType.READY: frozenset(Reason),
    ConditionType.SERVABLE: ROUTER_PROBLEM
    | {Reason.ROUTABLE, Reason.SCALED_TO_ZERO, Reason.STARTING, Reason.NOT_ROUTABLE},
    ConditionType.RECONCILING: PROGRESS
    | MISSING_REFERENCE
    | ROUTER_PROBLEM
    | ROLLOUT_UNDER_WAY
    | {Reason.UNSCHEDULABLE},
    ConditionType.STALLED: SPEC_PROBLEM | POD_PROBLEM | OPERATOR_PROBLEM | ROLLOUT_PROBLEM | {Reason.AMBIGUOUS_NODES},
    ConditionType.SCHEDULED: frozenset(
        {Reason.ALL_SCHEDULED, Reason.PODS_PENDING, Reason.UNSCHEDULABLE, Reason.PODS_REFUSED}
    ),
    ConditionType.MODEL_CACHED: MODEL_PROBLEM | {Reason.MODEL_AVAILABLE, Reason.MODEL_PENDING},
    ConditionType.ROUTER_SYNCED: ROUTER_PROBLEM | {Reason.SYNCED, Reason.ROUTES_PENDING, Reason.ENDPOINTS_PENDING},
    ConditionType.GATES_PASSED: ROLLOUT_UNDER_WAY | ROLLOUT_PROBLEM | {Reason.ROLLOUT_DONE},
    ConditionType.LICENSE_ACCEPTED: frozenset({Reason.ACCEPTED, Reason.LICENSE_NOT_ACCEPTED}),
}
"""Which reasons may stand on which condition type."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition as computed, without times. `message` ends with the fix when something is wrong."""

    type: ConditionType
    status: Status
    reason: Reason
    message: str

    def __post_init__(self) -> None:
        if self.reason not in REASONS[self.type]:
            raise Bug(f"reason {self.reason} does not belong to condition {self.type}")


MAX_MESSAGE_CHARS = 1024
"""Messages quote pods and events; a longer one is cut so that a status stays small."""


def merge(old: Iterable[Json], new: Sequence[Condition], generation: int, now: datetime) -> list[dict[str, Any]]:
    """The conditions to write, in the order of `new`: `lastTransitionTime` moves only when a status flips.

    Conditions of `old` that are not in `new` do not apply any more and are dropped. `now` is timezone-aware.
    """
    known = {item.get("type"): item for item in old}
    merged = []
    for condition in new:
        before = known.get(condition.type)
        same = before is not None and before.get("status") == condition.status
        since = before.get("lastTransitionTime") if same and before is not None else None
        merged.append(
            {
                "type": str(condition.type),
                "status": condition.status,
                "reason": str(condition.reason),
                "message": condition.message[:MAX_MESSAGE_CHARS],
                "observedGeneration": generation,
                "lastTransitionTime": since or now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        )
    return merged


def find(conditions: Iterable[Json], kind: ConditionType) -> Json | None:
    """The condition of this type, or None."""
    return next((item for item in conditions if item.get("type") == kind), None)
