"""The operator without its edges: queue, workers, periodic sweep and Lease around one `Cluster`.

The real process feeds it events from kopf and a `Cluster` over HTTP; the simulation feeds it delayed, dropped and
repeated events and a `Cluster` in memory. Both run the same code, and a controller that is cut off at any await may be
replaced by a new one without loss, since all state is in the cluster.
"""

import asyncio
import logging
from dataclasses import dataclass

from forebay.contract.clock import Clock
from forebay.contract.errors import ForebayError
from forebay.operator.cluster import OWN_RESOURCES, Cluster, Json, Resource
from forebay.operator.config import OperatorConfig
from forebay.operator.edge import OWN_KINDS, Edge, key_of
from forebay.operator.execute import Executor
from forebay.operator.lease import LeaseElector, LeaseSettings, lead
from forebay.operator.metrics import Metrics
from forebay.operator.observe import Observer, RouterReader
from forebay.operator.probe import Probe, ProbeLimits, WatchBook
from forebay.operator.queue import KeyedQueue, QueuePolicy
from forebay.operator.snapshot import Settings
from forebay.operator.worker import Passes, work

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outside:
    """What a controller needs from outside."""

    cluster: Cluster
    routers: RouterReader
    clock: Clock
    metrics: Metrics


class Controller:
    """One operator process's inner part."""

    def __init__(self, config: OperatorConfig, outside: Outside) -> None:
        clock = outside.clock
        self._config = config
        self._cluster = outside.cluster
        self._metrics = outside.metrics
        self._lease = LeaseSettings(
            config.namespace, config.lease_name, config.identity, config.lease_duration_s, config.lease_renew_s
        )
        self.elector = LeaseElector(outside.cluster, clock, self._lease)
        self.queue = KeyedQueue(clock, QueuePolicy())
        self._edge = Edge()
        self._book = WatchBook()
        self.probe = Probe(clock, self.queue, self._book, ProbeLimits(sweep_s=3 * config.resync_s))
        settings = Settings(
            router_image=config.router_image,
            operator_namespace=config.namespace,
            hf_endpoint=config.hf_endpoint,
            metrics_namespace=config.metrics_namespace,
        )
        self._passes = Passes(
            Observer(outside.cluster, outside.routers, settings),
            Executor(outside.cluster, clock, config.identity, self.elector.holds),
            clock,
            outside.metrics,
        )
        self._register_gauges()

    def on_event(self, kind: str, obj: Json, *, deleted: bool) -> None:
        """Take one watch event of any watched kind."""
        self.probe.saw_event()
        if kind in OWN_KINDS:
            self._book.delivered(kind, obj, deleted=deleted)
            self._metrics.watched(kind)
        for key, delay_s in self._edge.wishes(kind, obj, deleted=deleted):
            self.queue.add(key, delay_s)

    async def run(self) -> None:
        """Wait for the Lease, then work until cancelled; raises `LeadershipLost` when it is lost."""
        await lead(self.elector, self._lease, self._work)

    async def _work(self) -> None:
        self.probe.leading()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(work(self.queue, self._passes, self.probe, self._config.workers))
                group.create_task(self._sweep_for_ever())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed

    async def _sweep_for_ever(self) -> None:
        spread_s = 0.0
        while True:
            try:
                await self._sweep(spread_s)
            except ForebayError as error:
                log.warning("the full look failed: %s", error)
            self.probe.finished_sweep()
            await asyncio.sleep(self._config.resync_s)
            spread_s = self._config.resync_s / 2

    async def _sweep(self, spread_s: float) -> None:
        """Look at every resource once, spread over `spread_s`, and check what the watches have delivered."""
        for resource in OWN_RESOURCES:
            objects = await self._list(resource)
            self._book.swept(resource.kind, objects)
            for index, obj in enumerate(objects):
                self.queue.add(key_of(resource.kind, obj), spread_s * index / len(objects))

    async def _list(self, resource: Resource) -> list[Json]:
        namespaces = self._config.watch_namespaces if resource.namespaced else ()
        if not namespaces:
            return await self._cluster.list(resource.api_version, resource.kind, None)
        lists = [await self._cluster.list(resource.api_version, resource.kind, name) for name in namespaces]
        return [obj for objects in lists for obj in objects]

    def _register_gauges(self) -> None:
        self._metrics.gauges(
            {
                "queue_depth": ("Keys that wait for a worker.", lambda: self.queue.depth),
                "queue_failing": ("Keys whose last pass failed.", lambda: self.queue.failing),
                "last_pass_age_seconds": ("Time since the last pass ended.", self.probe.pass_age_s),
                "last_watch_event_age_seconds": ("Time since the last watch event.", self.probe.event_age_s),
                "is_leader": ("1 while this process holds the Lease.", self.elector.holds),
            }
        )
