"""One script of API calls, played on a real API server and on the fake: the outcomes must be the same lines.

`tests/unit/fake_cluster/recorded.txt` holds the lines of a real server; a cluster test plays the script again, so the
recording cannot grow old.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import sim_objects
from forebay.contract.errors import ForebayError
from forebay.operator.cluster import Cluster, Json

Obj = dict[str, Any]


class Player:
    """Plays steps on one cluster and namespace and writes down what came of each."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.lines: list[str] = []

    async def step(
        self, what: str, act: Callable[[], Awaitable[Any]], show: Callable[[Any], Any] = lambda _: ""
    ) -> Any:
        """Do one call; the line is its name and what `show` makes of the answer, or the class of the error."""
        try:
            answer = await act()
        except ForebayError as error:
            self.lines.append(f"{what}: {type(error).__name__}")
            return None
        self.lines.append(f"{what}: {show(answer)}".rstrip(": "))
        return answer

    def config_map(self, data: Obj | None, **metadata: Any) -> Obj:
        """The ConfigMap of the script."""
        obj: Obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "script", **metadata}}
        obj["metadata"]["namespace"] = self.namespace
        return obj if data is None else {**obj, "data": data}

    async def apply(self, obj: Obj, manager: str = "one", *, force: bool = False) -> Json:
        """Server-side apply."""
        return await self.cluster.apply(obj, manager, force=force)


def data(obj: Json) -> Any:
    """The data of a ConfigMap, sorted."""
    return sorted((obj.get("data") or {}).items())


def version(obj: Json) -> str:
    """The version of an object."""
    return str(obj["metadata"]["resourceVersion"])


async def play(cluster: Cluster, namespace: str) -> list[str]:
    """All chapters, in order."""
    player = Player(cluster, namespace)
    for chapter in (ownership, preconditions, custom_resources, workloads, immutable_fields):
        await chapter(player)
    return player.lines


async def ownership(p: Player) -> None:
    """Fields belong to managers; what a manager no longer applies goes, unless another one owns it."""
    first = await p.step("apply creates", lambda: p.apply(p.config_map({"a": "1", "b": "2"})), data)
    same = await p.apply(p.config_map({"a": "1", "b": "2"}))
    p.lines.append(f"an unchanged apply keeps the version: {version(first) == version(same)}")
    await p.step("a dropped field goes", lambda: p.apply(p.config_map({"a": "1"})), data)
    await p.step("another manager adds", lambda: p.apply(p.config_map({"c": "3"}), "two"), data)
    await p.step("equal values are shared", lambda: p.apply(p.config_map({"a": "1", "c": "3"}), "two"), data)
    await p.step("another value conflicts", lambda: p.apply(p.config_map({"a": "9", "c": "3"}), "two"), data)
    await p.step("force takes it", lambda: p.apply(p.config_map({"a": "9", "c": "3"}), "two", force=True), data)
    await p.step("and is kept by the other dropping it", lambda: p.apply(p.config_map(None)), data)
    await p.step("until its owner drops it", lambda: p.apply(p.config_map({"c": "3"}), "two"), data)


async def preconditions(p: Player) -> None:
    """Names, versions and uids guard writes."""
    live = await p.cluster.get("v1", "ConfigMap", p.namespace, "script")
    assert live is not None
    wrong = "11111111-1111-1111-1111-111111111111"
    uid = live["metadata"]["uid"]
    p.lines.append(f"core objects have no generation: {'generation' not in live['metadata']}")
    await p.step("create an existing name", lambda: p.cluster.create(p.config_map({})))
    await p.step("apply with another uid", lambda: p.apply(p.config_map({"c": "3"}, uid=wrong), "two"))
    missing = {**p.config_map({}), "metadata": {"name": "missing", "namespace": p.namespace, "uid": wrong}}
    await p.step("apply with a uid to nothing", lambda: p.apply(missing))
    replaced = await p.step("replace", lambda: p.cluster.replace({**live, "data": {"x": "y"}}), data)
    await p.step("replace an old version", lambda: p.cluster.replace({**live, "data": {"x": "z"}}))
    assert replaced is not None
    await p.step("delete another uid", lambda: p.cluster.delete("v1", "ConfigMap", p.namespace, "script", wrong))
    await p.step("delete", lambda: p.cluster.delete("v1", "ConfigMap", p.namespace, "script", uid))
    await p.step("delete again", lambda: p.cluster.delete("v1", "ConfigMap", p.namespace, "script", uid))
    await p.step("get what is gone", lambda: p.cluster.get("v1", "ConfigMap", p.namespace, "script"), str)


async def custom_resources(p: Player) -> None:
    """Generation follows the spec alone; the status is written apart, on an exact version."""
    kind = "ModelDeployment"
    obj = sim_objects.deployment("script")
    obj["metadata"]["namespace"] = p.namespace
    api = obj["apiVersion"]

    def seen(found: Json) -> Any:
        return found["metadata"]["generation"], sorted(found.get("status") or {})

    async def status(found: Json, **fields: Any) -> Json:
        return await p.cluster.patch_status(api, kind, p.namespace, "script", fields, "status", version(found))

    conditions = [
        {"type": t, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2027-01-01T00:00:00Z"}
        for t in ("Ready", "Servable")
    ]
    made = await p.step("create ignores a status", lambda: p.apply({**obj, "status": {"url": "x"}}), seen)
    first = await p.step("status", lambda: status(made, url="x", conditions=conditions), seen)
    p.lines.append(f"a status moves the version: {version(first) != version(made)}")
    await p.step("status on an old version", lambda: status(made, url="y"))
    same = await status(first, url="x", conditions=conditions)
    p.lines.append(f"an unchanged status keeps the version: {version(first) == version(same)}")
    fewer = await p.step(
        "a dropped condition goes",
        lambda: status(same, conditions=conditions[:1]),
        lambda o: [c["type"] for c in o["status"]["conditions"]],
    )
    scaled = {**obj, "spec": {**obj["spec"], "replicas": 2}}
    await p.step("a spec change counts and keeps the status", lambda: p.apply(scaled), seen)
    labelled = {**scaled, "metadata": {**obj["metadata"], "labels": {"team": "a"}}}
    live = await p.step("a label does not count", lambda: p.apply(labelled), seen)
    await p.step("replace keeps the status", lambda: p.cluster.replace({**live, "status": {}}), seen)
    assert fewer is not None
    listed = await p.cluster.list(api, kind, p.namespace, "team=a")
    p.lines.append(f"list by label: {[o['metadata']['name'] for o in listed]} {[o['kind'] for o in listed]}")
    p.lines.append(f"list by another label: {await p.cluster.list(api, kind, p.namespace, 'team=b')}")
    await p.cluster.delete(api, kind, p.namespace, "script", live["metadata"]["uid"])
    await p.step(
        "status of what is gone",
        lambda: p.cluster.patch_status(api, kind, p.namespace, "script", {"url": "x"}, "status", "1"),
    )


def deployment(namespace: str, env: list[Obj], **spec: Any) -> Obj:
    """A Deployment without pods."""
    labels = {"app": "script"}
    container = {
        "name": "main",
        "image": "example.com/none:1",
        "env": env,
        "ports": [{"containerPort": 8000}],
        "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"memory": "1536Mi"}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "script", "namespace": namespace},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            **spec,
        },
    }


async def workloads(p: Player) -> None:
    """Defaults and canonical quantities appear, lists merge by key, a repeat changes nothing."""
    one, two = {"name": "ONE", "value": "1"}, {"name": "TWO", "value": "2"}

    def container(found: Json) -> Obj:
        return dict(found["spec"]["template"]["spec"]["containers"][0])

    def environment(found: Json) -> Any:
        return found["metadata"]["generation"], sorted(e["name"] for e in container(found).get("env", ()))

    made = await p.step("deployment", lambda: p.apply(deployment(p.namespace, [one])), environment)
    main = container(made)
    p.lines.append(f"quantities: {json.dumps(main['resources'], sort_keys=True)}")
    p.lines.append(f"ports: {json.dumps(main['ports'], sort_keys=True)}, pull policy {main['imagePullPolicy']}")
    pod = made["spec"]["template"]["spec"]
    p.lines.append(f"pod: {pod['restartPolicy']} {pod['dnsPolicy']} {pod['terminationGracePeriodSeconds']}")
    p.lines.append(f"strategy: {made['spec']['strategy']['type']} {made['spec']['revisionHistoryLimit']}")
    await p.step("a repeat changes nothing", lambda: p.apply(deployment(p.namespace, [one])), environment)
    other = {**deployment(p.namespace, [two])}
    await p.step("a quantity in another form conflicts", lambda: p.apply(other, "two"))
    await p.step("lists merge by key", lambda: p.apply(other, "two", force=True), environment)
    await p.step("own items go alone", lambda: p.apply(deployment(p.namespace, []), force=True), environment)
    selector = {"matchLabels": {"app": "other"}}
    await p.step(
        "a selector cannot change", lambda: p.apply(deployment(p.namespace, [], selector=selector), "one", force=True)
    )
    await p.cluster.delete("apps/v1", "Deployment", p.namespace, "script", made["metadata"]["uid"])


async def immutable_fields(p: Player) -> None:
    """Stored revisions and role references cannot change."""
    metadata = {"name": "script", "namespace": p.namespace}
    revision: Obj = {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": metadata, "revision": 1}
    made = await p.step("revision", lambda: p.apply({**revision, "data": {"a": [1]}}), lambda o: o["data"])
    await p.step("a revision cannot change", lambda: p.apply({**revision, "data": {"a": [2]}}))
    await p.cluster.delete("apps/v1", "ControllerRevision", p.namespace, "script", made["metadata"]["uid"])
    rbac = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "subjects": [{"kind": "ServiceAccount", "name": "x", "namespace": p.namespace}],
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "a"},
    }
    bound = await p.step("binding", lambda: p.apply(binding), lambda o: o["subjects"])
    changed = {**binding, "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "b"}}
    await p.step("a role reference cannot change", lambda: p.apply(changed))
    await p.cluster.delete(f"{rbac}/v1", "RoleBinding", p.namespace, "script", bound["metadata"]["uid"])
