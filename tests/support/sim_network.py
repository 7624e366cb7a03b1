"""What lies between an operator process and the API server: latency, failures, a watch that cannot be trusted.

`FakeClient` is the `Cluster` of one process. It can be cut off after its n-th write, which is how a process dies
between two writes: the write is done, the process never learns of it. `Watch` delivers events late, out of order
between objects, twice, or not at all.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fake_cluster import Change, FakeCluster, labels_match
from forebay.contract.errors import ApiConflict, ApiGone, ApiThrottled
from forebay.contract.names import LABEL_DEPLOYMENT
from forebay.operator.cluster import CHILD_RESOURCES, LEASE_RESOURCE, OWN_RESOURCES

Json = Mapping[str, Any]
Obj = dict[str, Any]

OWN_KINDS = frozenset(r.kind for r in OWN_RESOURCES)
LABELLED_KINDS = frozenset(r.kind for r in CHILD_RESOURCES) | {"Pod"}


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """How bad the connection is; rates are probabilities for each call or event, delays upper bounds in seconds."""

    latency_s: float = 0.02
    lost_requests: float = 0.0
    lost_answers: float = 0.0
    watch_delay_s: float = 0.3
    dropped_events: float = 0.0
    repeated_events: float = 0.0


GOOD = NetworkPolicy()


@dataclass(frozen=True, slots=True)
class Write:
    """One write that reached the API server."""

    process: str
    verb: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.process} {self.verb} {self.kind}/{self.name}"


class FakeClient:
    """`Cluster` of the process `name`; `on_write` hears of every write but the Lease's, after it took effect."""

    def __init__(
        self, api: FakeCluster, name: str, rng: random.Random, policy: NetworkPolicy, on_write: Callable[[Write], None]
    ) -> None:
        self._api = api
        self._name = name
        self._rng = rng
        self._policy = policy
        self._on_write = on_write
        self.is_cut = False

    def heal(self) -> None:
        """No failures from now on."""
        self._policy = GOOD

    async def get(self, api_version: str, kind: str, namespace: str | None, name: str) -> Json | None:
        """See `Cluster`."""
        await self._pass()
        return self._api.get(api_version, kind, namespace, name)

    async def list(
        self, api_version: str, kind: str, namespace: str | None, label_selector: str = "", field_selector: str = ""
    ) -> list[Json]:
        """See `Cluster`."""
        await self._pass()
        return list(self._api.list(api_version, kind, namespace, label_selector, field_selector))

    async def apply(self, obj: Json, manager: str, *, force: bool) -> Json:
        """See `Cluster`."""
        return await self._write("apply", obj, lambda: self._api.apply(obj, manager, force=force))

    async def create(self, obj: Json) -> Json:
        """See `Cluster`."""
        return await self._write("create", obj, lambda: self._api.create(obj))

    async def replace(self, obj: Json) -> Json:
        """See `Cluster`."""
        return await self._write("replace", obj, lambda: self._api.replace(obj))

    async def delete(self, api_version: str, kind: str, namespace: str | None, name: str, uid: str) -> None:
        """See `Cluster`."""
        obj = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": namespace}}

        def act() -> Obj:
            try:
                self._api.delete(api_version, kind, namespace, name, uid)
            except ApiGone:
                return obj
            return obj

        await self._write("delete", obj, act)

    async def patch_status(
        self, api_version: str, kind: str, namespace: str | None, name: str, status: Json, manager: str, version: str
    ) -> Json:
        """See `Cluster`."""
        obj = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": namespace}}
        act = self._api.patch_status
        return await self._write(
            "status", obj, lambda: act(api_version, kind, namespace, name, status, manager, version)
        )

    async def _write(self, verb: str, obj: Json, act: Callable[[], Obj]) -> Obj:
        await self._pass()
        answer = act()
        if obj["kind"] != LEASE_RESOURCE.kind:
            self._on_write(Write(self._name, verb, obj["kind"], obj["metadata"]["name"]))
        await self._check_cut()
        if self._rng.random() < self._policy.lost_answers:
            raise ApiThrottled("the answer was lost")
        return answer

    async def _pass(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, self._policy.latency_s))
        await self._check_cut()
        if self._rng.random() < self._policy.lost_requests:
            if self._rng.random() < 0.3:
                raise ApiConflict("somebody else was faster")
            raise ApiThrottled("the request was lost")

    async def _check_cut(self) -> None:
        if self.is_cut:
            await asyncio.get_running_loop().create_future()


class Watch:
    """Delivers changes to one process; starts with everything that exists, as a list-and-watch does."""

    def __init__(
        self,
        api: FakeCluster,
        rng: random.Random,
        policy: NetworkPolicy,
        deliver: Callable[[str, Json, bool], None],
    ) -> None:
        self._rng = rng
        self._policy = policy
        self._deliver = deliver
        self._is_cut = False
        for obj in api.objects():
            self._send(Change("ADDED", obj))
        api.subscribe(self._send)

    def cut(self) -> None:
        """Deliver nothing more."""
        self._is_cut = True

    def heal(self) -> None:
        """Lose nothing from now on."""
        self._policy = GOOD

    def _send(self, change: Change) -> None:
        obj = change.obj
        if self._is_cut or not _is_watched(obj) or self._rng.random() < self._policy.dropped_events:
            return
        loop = asyncio.get_running_loop()
        times = 2 if self._rng.random() < self._policy.repeated_events else 1
        for _ in range(times):
            loop.call_later(self._rng.uniform(0.0, self._policy.watch_delay_s), self._arrive, change)

    def _arrive(self, change: Change) -> None:
        if not self._is_cut:
            self._deliver(change.obj["kind"], change.obj, change.type == "DELETED")


def _is_watched(obj: Obj) -> bool:
    kind = obj["kind"]
    return kind in OWN_KINDS or kind == "Node" or (kind in LABELLED_KINDS and labels_match(obj, LABEL_DEPLOYMENT))
