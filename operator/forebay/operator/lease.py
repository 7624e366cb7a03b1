"""Leadership by one `coordination.k8s.io` Lease: of all operator processes only its holder works.

A holder that cannot renew stops being one before any other process may take over: `holds` turns false after two
thirds of the lease's duration, counted from before the last successful renewal was sent. Every write of a pass is
fenced by `holds`. Other processes' clocks are never compared: an expired lease is one that has not changed for its
whole duration while we watched. Renewals are the only writes of an idle operator.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from forebay.contract.clock import Clock
from forebay.contract.errors import ApiConflict, ForebayError
from forebay.operator.cluster import LEASE_RESOURCE, Cluster, Json

log = logging.getLogger(__name__)

RELEASE_TRIES: Final = 3


class LeadershipLost(ForebayError):
    """Another process may lead now: stop at once and write nothing more."""

    code = "leadership_lost"


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Which Lease, who we are in it, and its times in seconds."""

    namespace: str
    name: str
    identity: str
    duration_s: float
    renew_s: float


class LeaseElector:
    """Takes, renews and releases the Lease; one per process."""

    def __init__(self, cluster: Cluster, clock: Clock, settings: LeaseSettings) -> None:
        self._cluster = cluster
        self._clock = clock
        self._settings = settings
        self._seen_version = ""
        self._seen_at_s = 0.0
        self._mine: Json | None = None
        self._valid_until_s = float("-inf")

    def holds(self) -> bool:
        """Whether this process may still write."""
        return self._clock.monotonic_s() < self._valid_until_s

    async def try_hold(self) -> bool:
        """One round of taking or renewing; true when the Lease is ours. API errors pass through."""
        started = self._clock.monotonic_s()
        try:
            self._mine = await self._round(started)
        except ApiConflict:
            self._mine = None
        if self._mine is None:
            return False
        self._valid_until_s = started + self._settings.duration_s * 2 / 3
        return True

    async def release(self) -> None:
        """Give the Lease back on a clean stop, so that the next process need not wait for it to expire."""
        if self._mine is None or not self.holds():
            return
        self._mine = None
        self._valid_until_s = float("-inf")
        for _ in range(RELEASE_TRIES):
            try:
                await self._give_back()
            except ApiConflict:
                # A renewal that the stop cut off on our side was still on its way to the server.
                continue
            return

    async def _give_back(self) -> None:
        resource, settings = LEASE_RESOURCE, self._settings
        lease = await self._cluster.get(resource.api_version, resource.kind, settings.namespace, settings.name)
        if lease is None or (lease.get("spec") or {}).get("holderIdentity") != settings.identity:
            return
        await self._cluster.replace(
            {**lease, "spec": {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}
        )

    async def _round(self, now: float) -> Json | None:
        settings = self._settings
        if self._mine is not None:
            return await self._cluster.replace(self._renewed(self._mine))
        resource = LEASE_RESOURCE
        lease = await self._cluster.get(resource.api_version, resource.kind, settings.namespace, settings.name)
        if lease is None:
            return await self._cluster.create(self._new())
        spec: Mapping[str, Any] = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder == settings.identity:
            return await self._cluster.replace(self._renewed(lease))
        if lease["metadata"]["resourceVersion"] != self._seen_version:
            self._seen_version = lease["metadata"]["resourceVersion"]
            self._seen_at_s = now
        expired = now >= self._seen_at_s + float(spec.get("leaseDurationSeconds") or 0)
        if holder and not expired:
            return None
        log.info("taking the lease %s over from %s", settings.name, holder or "nobody")
        return await self._cluster.replace(self._taken(lease))

    def _new(self) -> Json:
        now = self._timestamp()
        return {
            "apiVersion": LEASE_RESOURCE.api_version,
            "kind": LEASE_RESOURCE.kind,
            "metadata": {"name": self._settings.name, "namespace": self._settings.namespace},
            "spec": {**self._term(now), "acquireTime": now, "leaseTransitions": 0},
        }

    def _renewed(self, lease: Json) -> Json:
        return {**lease, "spec": {**lease["spec"], **self._term(self._timestamp())}}

    def _taken(self, lease: Json) -> Json:
        now = self._timestamp()
        spec: Mapping[str, Any] = lease.get("spec") or {}
        transitions = int(spec.get("leaseTransitions") or 0) + 1
        return {**lease, "spec": {**spec, **self._term(now), "acquireTime": now, "leaseTransitions": transitions}}

    def _term(self, now: str) -> dict[str, Any]:
        return {
            "holderIdentity": self._settings.identity,
            "leaseDurationSeconds": round(self._settings.duration_s),
            "renewTime": now,
        }

    def _timestamp(self) -> str:
        return datetime.fromtimestamp(self._clock.wall_s(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def lead(elector: LeaseElector, settings: LeaseSettings, work: Callable[[], Coroutine[None, None, None]]) -> None:
    """Wait until the Lease is ours, run `work` under it, and raise `LeadershipLost` when it can no longer be held."""
    pause_s = settings.renew_s / 2
    held = await _attempt(elector)
    while not held:
        await asyncio.sleep(pause_s)
        held = await _attempt(elector)
    log.info("%s leads", settings.identity)
    working = asyncio.create_task(work())
    try:
        while not working.done():
            await asyncio.wait({working}, timeout=settings.renew_s)
            if not await _attempt(elector) and not elector.holds():
                raise LeadershipLost(f"the lease {settings.namespace}/{settings.name} could not be renewed in time")
        await working
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def _attempt(elector: LeaseElector) -> bool:
    try:
        return await elector.try_hold()
    except ForebayError as error:
        log.warning("lease: %s", error)
        return False
