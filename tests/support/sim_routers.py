"""Simulated router pods: each has its own, late view of the routes document and of the engine endpoints.

A router keeps working from its last view, as real ones do. `serves` is the ground truth that the tests hold against
the operator's word: a request that enters any ready router finds an engine that answers.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fake_cluster import Change, FakeCluster
from forebay.contract.names import (
    LABEL_DEPLOYMENT,
    LABEL_REVISION,
    LABEL_ROLE,
    PORT_ENGINE,
    ROLE_ENGINE,
    ROLE_ROUTER,
    ROUTES_KEY,
    routes_name,
)
from forebay.contract.wire import EndpointReport, RouterReport, Routes, parse_routes
from forebay.operator.snapshot import RouterObservation
from sim_world import World, is_pod_ready

Obj = dict[str, Any]

MAX_REQUEST_S = 8.0


@dataclass(slots=True)
class RouterView:
    """What one router pod knows."""

    routes: Routes | None = None
    endpoints: tuple[EndpointReport, ...] | None = None
    busy_until_s: dict[str, float] = field(default_factory=dict)
    """Until when requests of a revision that lost its traffic are open."""

    @property
    def synced(self) -> bool:
        """Whether both halves were read once."""
        return self.routes is not None and self.endpoints is not None

    def weight(self, revision: str) -> int:
        """Share of traffic of a revision."""
        weights = self.routes.weights if self.routes is not None else ()
        return sum(w.weight for w in weights if w.revision == revision)


class Routers:
    """All router pods of the cluster; implements `RouterReader`."""

    def __init__(self, world: World, rng: random.Random, *, view_delay_s: float, error_rate: float) -> None:
        self._world = world
        self._api: FakeCluster = world.api
        self._rng = rng
        self._view_delay_s = view_delay_s
        self._error_rate = error_rate
        self._views: dict[str, RouterView] = {}
        self._reached: set[str] = set()
        world.on_moved(self._changed)
        world.may_be_ready = self._may_be_ready

    def calm(self) -> None:
        """Every router answers from now on."""
        self._error_rate = 0.0

    async def read(self, pods: Sequence[tuple[str, str]]) -> tuple[RouterObservation, ...]:
        """One report for each pod, some of them missing."""
        if pods:
            await asyncio.sleep(self._rng.uniform(0.0, 0.02))
        return tuple(self._observe(name) for name, _ in pods)

    def serves(self, namespace: str, deployment: str) -> bool:
        """Whether a ready router reaches a ready engine by its own view, and each that ever did still does.

        A router that is new may need a moment to learn of an engine that is just as new.
        """
        selector = f"{LABEL_DEPLOYMENT}={deployment},{LABEL_ROLE}={ROLE_ROUTER}"
        ready = [
            pod
            for pod in self._api.list("v1", "Pod", namespace, selector)
            if is_pod_ready(pod) and not pod["metadata"].get("deletionTimestamp")
        ]
        uids = {pod["metadata"]["uid"] for pod in ready}
        reaching = {uid for uid in uids if self._reaches(namespace, self._views.get(uid))}
        self._reached |= reaching
        return bool(reaching) and not (self._reached & uids) - reaching

    def _may_be_ready(self, pod: Obj) -> bool:
        """A router is ready once it has read its routes and its endpoints."""
        if pod["metadata"]["labels"].get(LABEL_ROLE) != ROLE_ROUTER:
            return True
        view = self._views.get(pod["metadata"]["uid"])
        return view is not None and view.synced

    def _reaches(self, namespace: str, view: RouterView | None) -> bool:
        if view is None or not view.synced:
            return False
        for endpoint in view.endpoints or ():
            pod = self._api.get("v1", "Pod", namespace, endpoint.pod)
            answers = pod is not None and is_pod_ready(pod) and not pod["metadata"].get("deletionTimestamp")
            if answers and endpoint.routable and view.weight(endpoint.revision) > 0:
                return True
        return False

    def _observe(self, name: str) -> RouterObservation:
        pods = [pod for pod in self._api.list("v1", "Pod", None) if pod["metadata"]["name"] == name]
        view = self._views.get(pods[0]["metadata"]["uid"]) if pods else None
        if view is None or self._rng.random() < self._error_rate:
            return RouterObservation(name, None, error="no answer from the admin port")
        epoch = view.routes.epoch if view.routes is not None else 0
        endpoints = tuple(replace(e, inflight=self._inflight(view, e.revision)) for e in view.endpoints or ())
        return RouterObservation(name, RouterReport(epoch, view.synced, endpoints, ()))

    def _inflight(self, view: RouterView, revision: str) -> int:
        """Requests come and go while a revision has traffic; afterwards the open ones take a while to end."""
        if view.weight(revision) > 0:
            return self._rng.randrange(3)
        return int(self._world.loop.time() < view.busy_until_s.get(revision, 0.0))

    def _changed(self, change: Change) -> None:
        obj = change.obj
        labels = obj["metadata"].get("labels") or {}
        deployment = labels.get(LABEL_DEPLOYMENT)
        if deployment is None or obj["kind"] not in {"Pod", "ConfigMap"}:
            return
        namespace = obj["metadata"]["namespace"]
        if obj["kind"] == "ConfigMap":
            if obj["metadata"]["name"] == routes_name(deployment):
                self._refresh(namespace, deployment, "routes")
        elif labels.get(LABEL_ROLE) == ROLE_ROUTER:
            if change.type == "DELETED":
                self._views.pop(obj["metadata"]["uid"], None)
            elif (obj.get("status") or {}).get("podIP") and obj["metadata"]["uid"] not in self._views:
                self._views[obj["metadata"]["uid"]] = RouterView()
                self._refresh_one(obj["metadata"]["uid"], namespace, deployment, "routes")
                self._refresh_one(obj["metadata"]["uid"], namespace, deployment, "endpoints")
        else:
            self._refresh(namespace, deployment, "endpoints")

    def _refresh(self, namespace: str, deployment: str, half: str) -> None:
        selector = f"{LABEL_DEPLOYMENT}={deployment},{LABEL_ROLE}={ROLE_ROUTER}"
        for pod in self._api.list("v1", "Pod", namespace, selector):
            if pod["metadata"]["uid"] in self._views:
                self._refresh_one(pod["metadata"]["uid"], namespace, deployment, half)

    def _refresh_one(self, uid: str, namespace: str, deployment: str, half: str) -> None:
        read = self._read_routes if half == "routes" else self._read_endpoints

        def act() -> None:
            read(uid, namespace, deployment)
            for pod in self._api.list("v1", "Pod", namespace, f"{LABEL_ROLE}={ROLE_ROUTER}"):
                if pod["metadata"]["uid"] == uid:
                    self._world.nudge(pod)

        self._world.soon((half, uid), self._view_delay_s, act)

    def _read_routes(self, uid: str, namespace: str, deployment: str) -> None:
        view = self._views.get(uid)
        document = self._api.get("v1", "ConfigMap", namespace, routes_name(deployment))
        if view is not None and document is not None:
            before = view.routes.weights if view.routes is not None else ()
            view.routes = parse_routes(json.loads(document["data"][ROUTES_KEY]))
            for weight in before:
                if not view.weight(weight.revision):
                    view.busy_until_s[weight.revision] = self._world.loop.time() + self._rng.uniform(0.0, MAX_REQUEST_S)

    def _read_endpoints(self, uid: str, namespace: str, deployment: str) -> None:
        view = self._views.get(uid)
        if view is None:
            return
        selector = f"{LABEL_DEPLOYMENT}={deployment},{LABEL_ROLE}={ROLE_ENGINE}"
        view.endpoints = tuple(
            _endpoint(pod)
            for pod in self._api.list("v1", "Pod", namespace, selector)
            if (pod.get("status") or {}).get("podIP")
        )


def _endpoint(pod: Obj) -> EndpointReport:
    ready = is_pod_ready(pod) and not pod["metadata"].get("deletionTimestamp")
    return EndpointReport(
        address=f"{pod['status']['podIP']}:{PORT_ENGINE}",
        pod=pod["metadata"]["name"],
        revision=pod["metadata"]["labels"][LABEL_REVISION],
        ready=ready,
        routable=ready,
        inflight=0,
        load_age_s=0.5,
    )
