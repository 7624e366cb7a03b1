"""What a pass wants done: a closed set of actions, in the order in which they must be performed.

Order is meaning. The executor performs the actions one by one and stops at the first error; the next pass starts from
a new snapshot. It may refuse an action, it never adds, drops or reorders one.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from forebay.operator.snapshot import Json


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a child object as field manager `manager`.

    `force` is true only for an object that was seen to be ours; without it a namesake that belongs to somebody else
    answers with a conflict instead of being taken over. `reason` says for logs why the object differs.
    """

    object: Json
    manager: str
    force: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one of our own children, only while it still has this uid; an absent object is success.

    Propagation is background. `uid` guards against deleting a namesake.
    """

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class PatchStatus:
    """Apply the whole status (server-side apply on the status subresource, manager `forebay/status`, force).

    `namespace` is None for cluster-scoped kinds. The object may be gone by then: success. `version` is the
    resourceVersion of a child whose status it is; None means the object that the pass is about.
    """

    api_version: str
    kind: str
    namespace: str | None
    name: str
    status: dict[str, Any]
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Emit:
    """Record a Kubernetes Event about `regarding` (an object with apiVersion, kind and metadata).

    Best effort: a failure to record is logged and is not an error of the pass.
    """

    regarding: Json
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


Action: TypeAlias = Apply | Delete | PatchStatus | Emit


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of one pass. `requeue_after_s` None: nothing to wait for but the next watch event or resync."""

    actions: tuple[Action, ...] = ()
    requeue_after_s: float | None = None
