"""Performs the actions of a plan, in their order, and stops at the first error. It refuses, it never decides.

Refused are writes while the Lease is not held, kinds outside the table of children, and applying over an object that
exists without our labels: server-side apply with force is for our own objects only. Events are recorded on a best
effort basis under names made from their content, so repeating one after a crash adds nothing.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, assert_never

from forebay.contract.clock import Clock
from forebay.contract.errors import ApiConflict, ApiGone, Bug, ForebayError
from forebay.contract.names import LABEL_DEPLOYMENT_UID, LABEL_MANAGED_BY, MANAGED_BY, MANAGER_STATUS
from forebay.operator.actions import Action, Apply, Delete, Emit, PatchStatus
from forebay.operator.cluster import CHILD_RESOURCES, ApplyRefused, Cluster, Json, resource_of
from forebay.operator.lease import LeadershipLost

log = logging.getLogger(__name__)

EVENTS_API: Final = "events.k8s.io/v1"
MAX_NOTE_CHARS: Final = 1024

Identity = tuple[str, str, str]
"""(apiVersion, kind, name) of a child."""


@dataclass(frozen=True, slots=True)
class Execution:
    """How far a plan got; `failed` and `error` are both None when all of it was done."""

    done: int
    failed: Action | None = None
    error: ForebayError | None = None


class Executor:
    """Performs plans for one operator process."""

    def __init__(self, cluster: Cluster, clock: Clock, identity: str, holds_lease: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._identity = identity
        self._holds_lease = holds_lease

    async def execute(self, actions: Iterable[Action], own: Json | None, children: Iterable[Json]) -> Execution:
        """Perform `actions`; `own` and `children` are the live objects that the plan was made from.

        API errors are returned; `LeadershipLost` and `Bug` are raised.
        """
        known = {identity_of(child) for child in children}
        version = own["metadata"]["resourceVersion"] if own is not None else ""
        done = 0
        for action in actions:
            if not self._holds_lease():
                raise LeadershipLost("the lease ran out during a pass")
            try:
                version = await self._perform(action, known, version)
            except (Bug, LeadershipLost):
                raise
            except ForebayError as error:
                return Execution(done, action, error)
            done += 1
        return Execution(done)

    async def _perform(self, action: Action, known: set[Identity], version: str) -> str:
        """Perform one action on top of the own object's `version`; returns its version afterwards."""
        match action:
            case Apply():
                await self._apply(action, known)
            case Delete():
                log.info("deleting %s %s/%s: %s", action.kind, action.namespace, action.name, action.reason)
                _check_child(action.api_version, action.kind)
                await self._cluster.delete(action.api_version, action.kind, action.namespace, action.name, action.uid)
            case PatchStatus():
                return await self._patch_status(action, version)
            case Emit():
                await self._emit(action)
            case _:
                assert_never(action)
        return version

    async def _apply(self, action: Apply, known: set[Identity]) -> None:
        obj = action.object
        metadata = obj["metadata"]
        _check_child(obj["apiVersion"], obj["kind"])
        if (metadata.get("labels") or {}).get(LABEL_MANAGED_BY) != MANAGED_BY:
            raise Bug(f"{obj['kind']} {metadata['name']} is applied without the label {LABEL_MANAGED_BY}")
        log.info("applying %s %s/%s: %s", obj["kind"], metadata["namespace"], metadata["name"], action.reason)
        if identity_of(obj) not in known:
            await self._check_free(obj)
        await self._cluster.apply(obj, action.manager, force=action.force)

    async def _check_free(self, obj: Json) -> None:
        """An object that the snapshot lacks must not exist, unless an earlier action of ours has just made it."""
        metadata = obj["metadata"]
        live = await self._cluster.get(obj["apiVersion"], obj["kind"], metadata["namespace"], metadata["name"])
        if live is None:
            return
        labels = live["metadata"].get("labels") or {}
        where = f"{obj['kind']} {metadata['namespace']}/{metadata['name']}"
        if labels.get(LABEL_MANAGED_BY) != MANAGED_BY:
            raise ApplyRefused(f"{where} exists and is not managed by Forebay; delete or rename it")
        if labels.get(LABEL_DEPLOYMENT_UID) != metadata["labels"].get(LABEL_DEPLOYMENT_UID):
            raise ApiConflict(f"{where} still belongs to a deleted deployment")

    async def _patch_status(self, action: PatchStatus, version: str) -> str:
        where = (action.api_version, action.kind, action.namespace, action.name)
        try:
            at = version if action.version is None else action.version
            written = await self._cluster.patch_status(*where, action.status, MANAGER_STATUS, at)
        except ApiGone:
            log.debug("%s %s is gone; its status is not written", action.kind, action.name)
            return version
        return str(written["metadata"]["resourceVersion"]) if action.version is None else version

    async def _emit(self, action: Emit) -> None:
        try:
            await self._cluster.create(self._event(action))
        except ApiConflict:
            log.debug("event %s about %s is already there", action.reason, action.regarding["metadata"]["name"])
        except ForebayError as error:
            log.warning("event %s could not be recorded: %s", action.reason, error)

    def _event(self, action: Emit) -> dict[str, Any]:
        metadata = action.regarding["metadata"]
        content = "\0".join((metadata.get("uid", ""), action.type, action.reason, action.message))
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        now = datetime.fromtimestamp(self._clock.wall_s(), UTC)
        return {
            "apiVersion": EVENTS_API,
            "kind": "Event",
            # Events about cluster-scoped objects live in the namespace `default`.
            "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata.get("namespace") or "default"},
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": MANAGED_BY,
            "reportingInstance": self._identity[:128],
            "action": "Reconcile",
            "type": action.type,
            "reason": action.reason,
            "note": action.message[:MAX_NOTE_CHARS],
            "regarding": {
                "apiVersion": action.regarding["apiVersion"],
                "kind": action.regarding["kind"],
                "name": metadata["name"],
                **({"namespace": metadata["namespace"]} if metadata.get("namespace") else {}),
                **({"uid": metadata["uid"]} if metadata.get("uid") else {}),
            },
        }


def identity_of(obj: Json) -> Identity:
    """What names a child within its namespace."""
    return obj["apiVersion"], obj["kind"], obj["metadata"]["name"]


def _check_child(api_version: str, kind: str) -> None:
    if resource_of(api_version, kind) not in CHILD_RESOURCES:
        raise Bug(f"{api_version} {kind} is not a kind of child")
