"""The rest of a cluster, simulated on a virtual loop: garbage collector, Deployment controller, pods.

Everything reacts to API changes after random delays. A pod is scheduled, gets an address, becomes ready, may die, and
goes away gracefully. Pods whose image contains `broken` never become ready. Routers are in `sim_routers`.
"""

import asyncio
import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fake_cluster import Change, FakeCluster
from forebay.contract.errors import ApiGone

Obj = dict[str, Any]

TEMPLATE_HASH = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class WorldPolicy:
    """How slow and how deadly the world is. Delays are upper bounds in seconds."""

    controller_delay_s: float = 0.5
    start_delay_s: float = 4.0
    stop_delay_s: float = 2.0
    pod_deaths_per_s: float = 0.0
    """Rate at which each ready pod fails, until `calm` is called."""


class World:
    """Drives the API objects that the operator does not."""

    def __init__(
        self, api: FakeCluster, loop: asyncio.AbstractEventLoop, rng: random.Random, policy: WorldPolicy
    ) -> None:
        self.api = api
        self.loop = loop
        self.rng = rng
        self._policy = policy
        self._pending: set[tuple[Any, ...]] = set()
        self._pod_number = 0
        self._calm = False
        self._moved: list[Callable[[Change], None]] = []
        self._acted: list[Callable[[], None]] = []
        self.may_be_ready: Callable[[Obj], bool] = lambda _: True
        """Whether a running pod's readiness probe would succeed; `nudge` asks again."""
        api.subscribe(self._changed)

    def on_moved(self, listener: Callable[[Change], None]) -> None:
        """Call `listener` after the world's own reaction to each change was scheduled."""
        self._moved.append(listener)

    def on_acted(self, listener: Callable[[], None]) -> None:
        """Call `listener` after everything that the world does."""
        self._acted.append(listener)

    def calm(self) -> None:
        """No more deaths from now on."""
        self._calm = True

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is about to happen by itself."""
        return not self._pending

    def soon(self, name: tuple[Any, ...], delay_s: float, act: Callable[[], None]) -> None:
        """Do something once after a random delay up to `delay_s`; a pending one of the same name stands for both."""
        if name in self._pending:
            return
        self._pending.add(name)

        def run() -> None:
            self._pending.discard(name)
            act()
            for listener in self._acted:
                listener()

        self.loop.call_later(self.rng.uniform(0.02, delay_s), run)

    def _changed(self, change: Change) -> None:
        obj = change.obj
        delay_s = self._policy.controller_delay_s
        if change.type == "DELETED":
            self.soon(("gc",), delay_s * 2, self._collect)
        if obj["kind"] == "Deployment":
            self._kick(obj["metadata"]["namespace"], obj["metadata"]["name"])
        if obj["kind"] == "Pod":
            self._follow(change)
        for listener in self._moved:
            listener(change)

    def _collect(self) -> None:
        orphans = self.api.orphans()
        for obj in orphans:
            if obj["kind"] == "Pod":
                self._stop(obj)
            else:
                metadata = obj["metadata"]
                self.api.delete(obj["apiVersion"], obj["kind"], metadata.get("namespace"), metadata["name"])
        if any(obj["kind"] != "Pod" for obj in orphans):
            self.soon(("gc",), self._policy.controller_delay_s, self._collect)

    def _kick(self, namespace: str, name: str) -> None:
        self.soon(("deployment", namespace, name), self._policy.controller_delay_s, lambda: self._roll(namespace, name))

    def _follow(self, change: Change) -> None:
        pod = change.obj
        owner = pod["metadata"]["ownerReferences"][0]["name"]
        self._kick(pod["metadata"]["namespace"], owner)
        if change.type != "DELETED" and not pod["metadata"].get("deletionTimestamp"):
            self._grow(pod)

    def _roll(self, namespace: str, name: str) -> None:
        deployment = self.api.get("apps/v1", "Deployment", namespace, name)
        if deployment is None:
            return
        template = template_hash(deployment)
        wanted = deployment["spec"]["replicas"]
        live = [pod for pod in self._pods_of(deployment) if not pod["metadata"].get("deletionTimestamp")]
        new = [pod for pod in live if pod["metadata"]["labels"][TEMPLATE_HASH] == template]
        old = [pod for pod in live if pod["metadata"]["labels"][TEMPLATE_HASH] != template]
        surge = math.ceil(wanted * 0.25)
        for _ in range(min(wanted - len(new), wanted + surge - len(live))):
            self._create_pod(deployment, template)
        for pod in sorted(new, key=is_pod_ready)[: max(0, len(new) - wanted)]:
            self._stop(pod)
        self._stop_old(old, spare=sum(map(is_pod_ready, live)) - wanted)
        self._report(deployment, template)

    def _stop_old(self, old: list[Obj], *, spare: int) -> None:
        """Pods of an older template: those that are not ready go, the others as far as ready pods can be spared."""
        ready = [pod for pod in old if is_pod_ready(pod)]
        for pod in [pod for pod in old if not is_pod_ready(pod)] + ready[: max(0, spare)]:
            self._stop(pod)

    def _report(self, deployment: Obj, template: str) -> None:
        live = [pod for pod in self._pods_of(deployment) if not pod["metadata"].get("deletionTimestamp")]
        ready = sum(map(is_pod_ready, live))
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": len(live),
            "updatedReplicas": sum(pod["metadata"]["labels"][TEMPLATE_HASH] == template for pod in live),
            "readyReplicas": ready,
            "availableReplicas": ready,
        }
        self.api.set_status(deployment, status)

    def _pods_of(self, deployment: Obj) -> Iterator[Obj]:
        uid = deployment["metadata"]["uid"]
        for pod in self.api.list("v1", "Pod", deployment["metadata"]["namespace"]):
            if pod["metadata"]["ownerReferences"][0]["uid"] == uid:
                yield pod

    def _create_pod(self, deployment: Obj, template: str) -> None:
        self._pod_number += 1
        metadata = deployment["metadata"]
        labels = {**deployment["spec"]["template"]["metadata"]["labels"], TEMPLATE_HASH: template}
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": metadata["name"], "uid": metadata["uid"]}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{metadata['name']}-{template}-{self._pod_number}",
                "namespace": metadata["namespace"],
                "labels": labels,
                "ownerReferences": [owner],
            },
            "spec": deployment["spec"]["template"]["spec"],
        }
        self.api.set_status(self.api.create(pod), {"phase": "Pending", "conditions": []})

    def _stop(self, pod: Obj) -> None:
        self.api.mark_deleted(pod)
        metadata = pod["metadata"]

        def gone() -> None:
            live = self.api.get("v1", "Pod", metadata["namespace"], metadata["name"])
            if live is not None and live["metadata"]["uid"] == metadata["uid"]:
                self.api.delete("v1", "Pod", metadata["namespace"], metadata["name"])

        self.soon(("stop", metadata["uid"]), self._policy.stop_delay_s, gone)

    def _grow(self, pod: Obj) -> None:
        """The pod's next step: scheduled, running, ready, dead."""
        status = pod.get("status") or {}
        if not status.get("podIP"):
            self._later(pod, "start", self._policy.start_delay_s / 2, self._start)
        elif not is_pod_ready(pod):
            if self.may_be_ready(pod) and not any("broken" in c.get("image", "") for c in pod["spec"]["containers"]):
                self._later(pod, "ready", self._policy.start_delay_s, self._become_ready)
        elif self._policy.pod_deaths_per_s and not self._calm:
            self._later(pod, "die", 2 / self._policy.pod_deaths_per_s, self._die)

    def _later(self, pod: Obj, step: str, delay_s: float, act: Callable[[Obj], None]) -> None:
        metadata = pod["metadata"]

        def run() -> None:
            live = self.api.get("v1", "Pod", metadata["namespace"], metadata["name"])
            if live is not None and not live["metadata"].get("deletionTimestamp"):
                act(live)

        self.soon((step, metadata["uid"]), delay_s, run)

    def nudge(self, pod: Obj) -> None:
        """What the pod waited for may have happened."""
        if not pod["metadata"].get("deletionTimestamp"):
            self._grow(pod)

    def _start(self, pod: Obj) -> None:
        number = int(pod["metadata"]["name"].rpartition("-")[2])
        address = f"10.0.{number // 250}.{number % 250 + 1}"
        conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]
        running = {"name": "main", "ready": False, "restartCount": 0, "state": {"running": {"startedAt": "now"}}}
        status = {"phase": "Running", "podIP": address, "conditions": conditions, "containerStatuses": [running]}
        self.api.set_status(pod, status)

    def _become_ready(self, pod: Obj) -> None:
        self._set_ready(pod, "True")

    def _die(self, pod: Obj) -> None:
        if self._calm or not is_pod_ready(pod):
            return
        if self.rng.random() < 0.5:
            self._stop(pod)
        else:
            self._set_ready(pod, "False")

    def _set_ready(self, pod: Obj, status: str) -> None:
        conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": status}]
        try:
            self.api.set_status(pod, {**pod["status"], "conditions": conditions})
        except ApiGone:
            return


def is_pod_ready(pod: Obj) -> bool:
    """The pod's Ready condition."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def template_hash(deployment: Obj) -> str:
    """Names the pod template of a Deployment."""
    text = json.dumps(deployment["spec"]["template"], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
