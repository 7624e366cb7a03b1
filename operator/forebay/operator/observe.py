"""Reads everything one pass may look at, once, into a frozen snapshot.

Reads run in parallel and go to the API server itself, not to a cache, so a pass never acts on an old picture of its
own children. Router pods are asked on their admin ports by pod address; one that does not answer in time is part of
the picture, not an error. Called by `worker` at the start of each pass; nothing here decides anything.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from forebay.contract.names import LABEL_DEPLOYMENT, LABEL_ROLE, ROLE_ROUTER
from forebay.operator.cluster import (
    ACTION_KIND,
    CHILD_RESOURCES,
    FOREBAY_API,
    GPU_CLASS_KIND,
    MODEL_KIND,
    RELEASE_KIND,
    ROLLOUT_KIND,
    Cluster,
    Json,
)
from forebay.operator.edge import references
from forebay.operator.queue import Key
from forebay.operator.snapshot import (
    ActionSnapshot,
    DeploymentSnapshot,
    GPUClassSnapshot,
    ModelSnapshot,
    ReleaseSnapshot,
    RouterObservation,
    Settings,
)

WARNING_EVENTS: Final = "type=Warning,involvedObject.kind=Pod"
BOUND_PODS: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


class RouterReader(Protocol):
    """Asks router pods what they route to."""

    async def read(self, pods: Sequence[tuple[str, str]]) -> tuple[RouterObservation, ...]:
        """One observation for each (pod name, pod IP), in the same order; never raises."""


class Observer:
    """Builds snapshots; holds no state between passes."""

    def __init__(self, cluster: Cluster, routers: RouterReader, settings: Settings) -> None:
        self._cluster = cluster
        self._routers = routers
        self._settings = settings

    async def deployment(self, key: Key) -> DeploymentSnapshot:
        """A ModelDeployment with what it refers to and what it owns; nothing more is read once it is gone."""
        deployment = await self._own(key)
        snapshot = DeploymentSnapshot(
            namespace=key.namespace,
            name=key.name,
            deployment=deployment,
            model=None,
            gpu_class=None,
            release=None,
            children=(),
            pods=(),
            events=(),
            routers=(),
            settings=self._settings,
        )
        if deployment is None:
            return snapshot
        try:
            return await self._around(key, deployment, snapshot)
        except ExceptionGroup as group:
            # One failed read fails the pass; the others were cancelled or failed for the same reason.
            raise group.exceptions[0] from group

    async def _around(self, key: Key, deployment: Json, snapshot: DeploymentSnapshot) -> DeploymentSnapshot:
        named = {ref.kind: ref for ref in references(deployment)}
        selector = f"{LABEL_DEPLOYMENT}={key.name}"
        async with asyncio.TaskGroup() as group:
            model = group.create_task(self._referred(named.get(MODEL_KIND)))
            gpu_class = group.create_task(self._referred(named.get(GPU_CLASS_KIND)))
            release = group.create_task(self._referred(named.get(RELEASE_KIND)))
            lists = [
                group.create_task(self._cluster.list(r.api_version, r.kind, key.namespace, selector))
                for r in CHILD_RESOURCES
            ]
            actions = group.create_task(self._cluster.list(FOREBAY_API, ACTION_KIND, key.namespace))
            pods = await self._cluster.list("v1", "Pod", key.namespace, selector)
            routers = group.create_task(self._routers.read(router_addresses(pods)))
            events = group.create_task(self._events(key.namespace, pods))
        return replace(
            snapshot,
            model=model.result(),
            gpu_class=gpu_class.result(),
            release=release.result(),
            children=tuple(child for listed in lists for child in listed.result()),
            pods=tuple(pods),
            events=events.result(),
            routers=routers.result(),
            actions=tuple(action for action in actions.result() if (action.get("status") or {}).get("phase")),
        )

    async def action(self, key: Key) -> ActionSnapshot:
        """A RolloutAction with the Rollout it names."""
        action = await self._own(key)
        name = (((action or {}).get("spec") or {}).get("rolloutRef") or {}).get("name")
        rollout = None
        if name:
            rollout = await self._cluster.get(FOREBAY_API, ROLLOUT_KIND, key.namespace, name)
        return ActionSnapshot(key.namespace, key.name, action, rollout)

    async def model(self, key: Key) -> ModelSnapshot:
        """A Model."""
        return ModelSnapshot(key.namespace, key.name, await self._own(key))

    async def gpu_class(self, key: Key) -> GPUClassSnapshot:
        """A GPUClass with all nodes, and the bound pods when it counts an extended resource."""
        gpu_class = await self._own(key)
        if gpu_class is None:
            return GPUClassSnapshot(key.name, None, (), ())
        nodes = await self._cluster.list("v1", "Node", None)
        pods: list[Json] = []
        if (gpu_class.get("spec") or {}).get("resource"):
            pods = await self._cluster.list("v1", "Pod", None, field_selector=BOUND_PODS)
        return GPUClassSnapshot(key.name, gpu_class, tuple(nodes), tuple(pods))

    async def release(self, key: Key) -> ReleaseSnapshot:
        """An EngineRelease."""
        return ReleaseSnapshot(key.name, await self._own(key))

    async def _own(self, key: Key) -> Json | None:
        return await self._cluster.get(FOREBAY_API, key.kind, key.namespace or None, key.name)

    async def _referred(self, key: Key | None) -> Json | None:
        return None if key is None else await self._own(key)

    async def _events(self, namespace: str, pods: Sequence[Json]) -> tuple[Json, ...]:
        waiting = {pod["metadata"]["uid"] for pod in pods if not is_ready(pod)}
        if not waiting:
            return ()
        events = await self._cluster.list("v1", "Event", namespace, field_selector=WARNING_EVENTS)
        return tuple(event for event in events if event["involvedObject"].get("uid") in waiting)


def router_addresses(pods: Sequence[Json]) -> list[tuple[str, str]]:
    """(name, IP) of the router pods that can be asked."""
    return [
        (pod["metadata"]["name"], pod["status"]["podIP"])
        for pod in pods
        if (pod["metadata"].get("labels") or {}).get(LABEL_ROLE) == ROLE_ROUTER
        and (pod.get("status") or {}).get("podIP")
        and not pod["metadata"].get("deletionTimestamp")
    ]


def is_ready(pod: Json) -> bool:
    """The pod's Ready condition."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
