"""A small world around the pure core: children, pods and routers that move one event at a time.

Nothing happens by itself. A test calls `operator_pass` and the events of Kubernetes (a pod starts, becomes ready,
dies, goes away) and of routers (one takes the routes) in any order it likes, and may stop a pass after any action.
Names, uids and order are deterministic.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import operator_build as build
from forebay.contract.names import LABEL_REVISION, LABEL_ROLE, ROLE_ENGINE, ROLE_ROUTER, ROUTES_KEY
from forebay.operator.actions import Apply, Delete, PatchStatus, Plan
from forebay.operator.conditions import ConditionType, find
from forebay.operator.reconcile import reconcile_deployment
from forebay.operator.snapshot import DeploymentSnapshot

Key = tuple[str, str]


@dataclass
class Router:
    """What one router pod applied: the epoch and revision of the routes, and requests open on each engine pod."""

    epoch: int = 0
    serving: str | None = None
    inflight: dict[str, int] = field(default_factory=dict)


@dataclass
class World:
    """One ModelDeployment with everything around it."""

    document: dict[str, Any] = field(default_factory=build.deployment)
    parts: dict[str, Any] = field(default_factory=dict)
    children: dict[Key, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    routers: dict[str, Router] = field(default_factory=dict)
    now: datetime = build.NOW
    made: int = 0

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the spec as a user does."""
        change(self.document["spec"])
        self.document["metadata"]["generation"] += 1

    def snapshot(self) -> DeploymentSnapshot:
        """What `observe` would read now."""
        reports = tuple(
            build.router(name, self._report(router)) for name, router in sorted(self.routers.items()) if router.epoch
        )
        return build.snapshot(
            self.document,
            children=tuple(self.children[key] for key in sorted(self.children)),
            pods=tuple(self.pods[name] for name in sorted(self.pods)),
            routers=reports,
            **self.parts,
        )

    def operator_pass(self, stop_after: int | None = None) -> Plan:
        """One pass; performs only the first `stop_after` actions when the operator is killed within it."""
        plan = reconcile_deployment(self.snapshot(), self.now)
        for action in plan.actions[:stop_after]:
            match action:
                case Apply():
                    self._apply(action.object)
                case Delete():
                    self._delete((action.kind, action.name), action.uid)
                case PatchStatus(kind="Rollout"):
                    self.children[action.kind, action.name]["status"] = dict(action.status)
                case PatchStatus():
                    self.document["status"] = dict(action.status)
                case _:
                    pass
        return plan

    def open_run(self) -> None:
        """Pass until the run that a change opens has its candidate's pods asked for."""
        for _ in range(4):
            self.operator_pass()
        self.controllers()

    def rollouts(self) -> list[dict[str, Any]]:
        """All Rollouts, oldest first."""
        found = [item for (kind, _), item in self.children.items() if kind == "Rollout"]
        return sorted(found, key=lambda item: int(item["metadata"]["name"].rpartition("-")[2]))

    def _apply(self, document: Any) -> None:
        key = (document["kind"], document["metadata"]["name"])
        before = self.children.get(key)
        uid = before["metadata"]["uid"] if before else self._name("uid")
        self.children[key] = {**document, "metadata": {**document["metadata"], "uid": uid}}

    def _delete(self, key: Key, uid: str) -> None:
        if key in self.children and self.children[key]["metadata"]["uid"] == uid:
            del self.children[key]

    def controllers(self) -> None:
        """The workload controllers: every Deployment gets the pods it asks for, surplus pods are asked to go."""
        wanted: dict[tuple[str, str], tuple[dict[str, Any], int]] = {}
        for (kind, _), item in sorted(self.children.items()):
            if kind == "Deployment":
                labels = item["spec"]["template"]["metadata"]["labels"]
                wanted[labels[LABEL_ROLE], labels[LABEL_REVISION]] = (labels, item["spec"]["replicas"])
        alive: dict[tuple[str, str], list[str]] = {}
        for name, pod in sorted(self.pods.items()):
            labels = pod["metadata"]["labels"]
            if "deletionTimestamp" not in pod["metadata"]:
                alive.setdefault((labels[LABEL_ROLE], labels[LABEL_REVISION]), []).append(name)
        for group, names in alive.items():
            for name in names[wanted.get(group, ({}, 0))[1] :]:
                self.pods[name]["metadata"]["deletionTimestamp"] = "2027-01-01T12:00:00Z"
        for group, (_, count) in wanted.items():
            for _ in range(count - len(alive.get(group, []))):
                name = self._name(f"{group[0]}-{group[1]}")
                self.pods[name] = build.pod(name, *group, ready=False)

    def pod_ready(self, name: str) -> None:
        """The pod's readiness probe succeeds."""
        if name in self.pods and "deletionTimestamp" not in self.pods[name]["metadata"]:
            labels = self.pods[name]["metadata"]["labels"]
            self.pods[name] = build.pod(name, labels[LABEL_ROLE], labels[LABEL_REVISION])
            if labels[LABEL_ROLE] == ROLE_ROUTER and name not in self.routers:
                self.routers[name] = Router()
                self.router_takes_routes(name)

    def pod_dies(self, name: str) -> None:
        """The pod is gone at once; its Deployment makes another."""
        self.pods.pop(name, None)
        self.routers.pop(name, None)

    def pod_ends(self, name: str) -> None:
        """A pod that was asked to go finished its requests and went."""
        if name in self.pods and "deletionTimestamp" in self.pods[name]["metadata"]:
            self.pod_dies(name)

    def router_takes_routes(self, name: str) -> None:
        """A router's watch delivers the routes ConfigMap."""
        routes = self.children.get(("ConfigMap", "chat-routes"))
        if routes is not None and name in self.routers:
            self.routers[name].epoch, self.routers[name].serving = _routes_of(routes)

    def _report(self, router: Router) -> Any:
        endpoints = [
            build.endpoint(name, pod["metadata"]["labels"][LABEL_REVISION], inflight=router.inflight.get(name, 0))
            for name, pod in sorted(self.pods.items())
            if pod["metadata"]["labels"][LABEL_ROLE] == ROLE_ENGINE and takes_requests(pod)
        ]
        return build.report(router.epoch, *endpoints)

    def settle(self, rounds: int = 60) -> None:
        """Let everything happen fairly until a pass has nothing to do; fails when that does not come."""
        for _ in range(rounds):
            for name in sorted(self.routers):
                self.router_takes_routes(name)
            self.controllers()
            for name in sorted(self.pods):
                self.pod_ready(name)
                self.pod_ends(name)
            for router in self.routers.values():
                router.inflight = {}
            self.now += timedelta(seconds=2)
            plan = self.operator_pass()
            if not plan.actions and self.condition(ConditionType.READY) == "True":
                return
        raise AssertionError(f"not settled after {rounds} rounds: {self.document.get('status')}")

    def condition(self, kind: ConditionType) -> str | None:
        """Status of a condition as last written."""
        conditions = (self.document.get("status") or {}).get("conditions") or []
        found = find(conditions, kind)
        return None if found is None else str(found["status"])

    def engines(self) -> dict[str, dict[str, Any]]:
        """Engine pods by name."""
        return {name: pod for name, pod in self.pods.items() if pod["metadata"]["labels"][LABEL_ROLE] == ROLE_ENGINE}

    def serving(self) -> str | None:
        """The revision that the written routes give the traffic to."""
        routes = self.children.get(("ConfigMap", "chat-routes"))
        return None if routes is None else _routes_of(routes)[1]

    def answers(self) -> bool:
        """Whether every router that takes traffic has a ready engine of the revision it routes to."""
        takers = [name for name in self.routers if name in self.pods and takes_requests(self.pods[name])]
        ready = {pod["metadata"]["labels"][LABEL_REVISION] for pod in self.engines().values() if takes_requests(pod)}
        return bool(takers) and all(self.routers[name].serving in ready for name in takers)

    def _name(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}-{self.made:03d}"


def takes_requests(pod: dict[str, Any]) -> bool:
    """Whether the pod is ready and not going away."""
    conditions = pod["status"]["conditions"]
    is_ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]


def _routes_of(document: dict[str, Any]) -> tuple[int, str | None]:
    routes = json.loads(document["data"][ROUTES_KEY])
    return routes["epoch"], next((item["revision"] for item in routes["weights"] if item["weight"]), None)
