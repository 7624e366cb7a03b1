"""What an API server adds to and refuses in the objects that the operator applies: defaults, canonical quantities,
fields that cannot change. An operator that compares its intent with a live object field by field must cope with all
of these, or it writes for ever.
"""

from collections.abc import Callable, Mapping
from typing import Any

Obj = dict[str, Any]

GENERATION_KINDS = frozenset(
    {
        "Deployment",
        "EngineRelease",
        "GPUClass",
        "Model",
        "ModelDeployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Rollout",
        "RolloutAction",
    }
)
STATUS_KINDS = frozenset(
    {
        "Deployment",
        "EngineRelease",
        "GPUClass",
        "Model",
        "ModelDeployment",
        "Node",
        "Pod",
        "PodDisruptionBudget",
        "Service",
        "Rollout",
        "RolloutAction",
    }
)
IMMUTABLE: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "ControllerRevision": (("data",),),
    "Deployment": (("spec", "selector"),),
    "RoleBinding": (("roleRef",),),
}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def with_defaults(obj: Obj) -> Obj:
    """`obj` as the server would store it; parts that need nothing are shared."""
    fill = _FILL.get(obj["kind"])
    return fill(obj) if fill is not None else obj


def refused_change(before: Obj, after: Obj) -> str | None:
    """Path of a field that changed although it cannot, or None."""
    for path in IMMUTABLE.get(before["kind"], ()):
        if _at(before, path) != _at(after, path):
            return ".".join(path)
    return None


def canonical_quantity(value: Any) -> Any:
    """The form in which the server stores a quantity: `1024Mi` becomes `1Gi`, `1000m` becomes `1`."""
    text = str(value)
    if text.endswith("m") and text[:-1].isdigit():
        milli = int(text[:-1])
        return str(milli // 1000) if milli % 1000 == 0 else text
    for suffix, factor in _BINARY.items():
        if text.endswith(suffix) and text[:-2].isdigit():
            return _binary(int(text[:-2]) * factor)
    return text


def _binary(number: int) -> str:
    for suffix, factor in reversed(_BINARY.items()):
        if number and number % factor == 0:
            return f"{number // factor}{suffix}"
    return str(number)


def _deployment(obj: Obj) -> Obj:
    spec = {
        "replicas": 1,
        "revisionHistoryLimit": 10,
        "progressDeadlineSeconds": 600,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
        **obj["spec"],
    }
    template = spec["template"]
    spec["template"] = {**template, "spec": _pod_spec(template["spec"])}
    return {**obj, "spec": spec}


def _pod_spec(spec: Obj) -> Obj:
    filled = {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "securityContext": {},
        **spec,
    }
    if "serviceAccountName" in spec:
        filled["serviceAccount"] = spec["serviceAccountName"]
    for field in ("containers", "initContainers"):
        if field in spec:
            filled[field] = [_container(container) for container in spec[field]]
    if "volumes" in spec:
        filled["volumes"] = [_volume(volume) for volume in spec["volumes"]]
    return filled


def _container(container: Obj) -> Obj:
    latest = container.get("image", "").endswith(":latest")
    filled = {
        "imagePullPolicy": "Always" if latest else "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        **container,
        "resources": _resources(container.get("resources", {})),
    }
    if "ports" in container:
        filled["ports"] = [{"protocol": "TCP", **port} for port in container["ports"]]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if probe in container:
            filled[probe] = _probe(container[probe])
    return filled


def _resources(resources: Obj) -> Obj:
    return {
        name: {key: canonical_quantity(amount) for key, amount in value.items()} if isinstance(value, dict) else value
        for name, value in resources.items()
    }


def _probe(probe: Obj) -> Obj:
    filled = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3, **probe}
    if "httpGet" in probe:
        filled["httpGet"] = {"path": "/", "scheme": "HTTP", **probe["httpGet"]}
    return filled


def _volume(volume: Obj) -> Obj:
    for source in ("configMap", "secret", "projected"):
        if source in volume:
            return {**volume, source: {"defaultMode": 420, **volume[source]}}
    if "hostPath" in volume:
        return {**volume, "hostPath": {"type": "", **volume["hostPath"]}}
    return volume


def _service(obj: Obj) -> Obj:
    spec = {
        "type": "ClusterIP",
        "clusterIP": "10.96.0.7",
        "internalTrafficPolicy": "Cluster",
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "sessionAffinity": "None",
        **obj["spec"],
    }
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    spec["ports"] = [{"protocol": "TCP", "targetPort": port["port"], **port} for port in spec.get("ports", ())]
    return {**obj, "spec": spec}


def _role_binding(obj: Obj) -> Obj:
    if "subjects" not in obj:
        return obj
    subjects = [{"apiGroup": "", **s} if s.get("kind") != "ServiceAccount" else s for s in obj["subjects"]]
    return {**obj, "subjects": subjects}


def _network_policy(obj: Obj) -> Obj:
    spec = {"policyTypes": ["Ingress"], **obj["spec"]}
    for direction in ("ingress", "egress"):
        if direction in spec:
            spec[direction] = [_rule(rule) for rule in spec[direction]]
    return {**obj, "spec": spec}


def _rule(rule: Obj) -> Obj:
    return {**rule, "ports": [{"protocol": "TCP", **port} for port in rule["ports"]]} if "ports" in rule else rule


def _at(obj: Obj, path: tuple[str, ...]) -> Any:
    value: Any = obj
    for step in path:
        value = (value or {}).get(step)
    return value


_FILL: Mapping[str, Callable[[Obj], Obj]] = {
    "Deployment": _deployment,
    "NetworkPolicy": _network_policy,
    "RoleBinding": _role_binding,
    "Service": _service,
}
