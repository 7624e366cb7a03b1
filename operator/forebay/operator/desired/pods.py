"""The engine's pod template: restricted, probed by real progress, drained before it stops.

- The startup probe gives the engine the time that reading the weights takes, from their size.
- Readiness is `/ready` (model loaded, core makes progress); liveness is `/health`.
- The grace period is longer than the longest request, so that a draining pod finishes what it has.

A change here is a new renderer version for new revisions; stored revisions keep the bytes they were made with.
"""

import math
from typing import Any, Final

from forebay.api.gpuclass import GPUClassSpec
from forebay.contract.names import PATH_HEALTH, PATH_READY, PORT_ENGINE, ROLE_ENGINE, engine_name
from forebay.operator.desired.metadata import Owner, labels, selector
from forebay.operator.desired.model_source import MODEL_DIR, MODEL_VOLUME, ModelMount, mount_model
from forebay.operator.desired.overrides import apply_overrides
from forebay.operator.desired.security import container_security, pod_security
from forebay.operator.effective import DEFAULT_MAX_SECONDS, Effective
from forebay.operator.references import References
from forebay.operator.snapshot import Settings

CONFIG_DIR: Final = "/etc/forebay/config"
CONFIG_FILE: Final = "engine.json"

READ_BYTES_PER_S: Final = 50_000_000
"""Slowest disk or registry for which a start is still called healthy."""
STARTUP_FLOOR_S: Final = 120
"""Time to start a process and load an empty model on a slow, busy machine."""
UNKNOWN_SIZE_STARTUP_S: Final = 1800
"""Start-up time where the Model does not say how large the weights are."""
PROBE_PERIOD_S: Final = 2
DRAIN_MARGIN_S: Final = 45
"""What a pod gets beyond its longest request: the engine's own stop after SIGTERM and some slack."""

DEFAULT_CPU_REQUEST: Final = "250m"
UNKNOWN_SIZE_MEMORY_BYTES: Final = 1 << 30
AUTOMATIC_CACHE_BYTES: Final = 512 << 20
"""Reserved for the KV cache where the engine chooses its size itself."""
PROCESS_MEMORY_BYTES: Final = 512 << 20
"""Interpreter, torch and tokenizer, without weights and cache."""


def engine_template(
    owner: Owner, revision: str, references: References, effective: Effective, settings: Settings
) -> dict[str, Any]:
    """The pod template of one revision."""
    gpu, engine = references.gpu_class.spec, references.deployment.spec.engine
    mount = mount_model(references.checkpoint, references.release.spec.image, settings.hf_endpoint)
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": grace_s(effective),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector(owner, ROLE_ENGINE, revision)},
            }
        ],
        "containers": [_container(references, effective, mount)],
        "volumes": [
            mount.volume,
            {"name": "config", "configMap": {"name": engine_name(owner.name, revision)}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    if mount.init_containers:
        spec["initContainers"] = list(mount.init_containers)
    if mount.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in mount.pull_secrets]
    spec |= _placement(gpu)
    template = {"metadata": {"labels": labels(owner, ROLE_ENGINE, revision)}, "spec": spec}
    return apply_overrides(template, (engine.pod if engine else None) or {})


def grace_s(effective: Effective) -> int:
    """Seconds that an engine pod is given to finish its requests."""
    return longest_request_s(effective) + DRAIN_MARGIN_S


def longest_request_s(effective: Effective) -> int:
    """Longest life of a request, rounded up."""
    longest: float = effective.get("max_seconds", DEFAULT_MAX_SECONDS)
    return math.ceil(longest)


def startup_s(size_bytes: int | None) -> int:
    """Seconds until a start counts as failed: the floor plus the time to read the weights."""
    if size_bytes is None:
        return UNKNOWN_SIZE_STARTUP_S
    return STARTUP_FLOOR_S + math.ceil(size_bytes / READ_BYTES_PER_S)


def _container(references: References, effective: Effective, mount: ModelMount) -> dict[str, Any]:
    return {
        "name": "engine",
        "image": references.release.spec.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "forebay.engine"],
        "args": [
            "serve",
            "--config",
            f"{CONFIG_DIR}/{CONFIG_FILE}",
            "--model",
            mount.path,
            "--host",
            "0.0.0.0",  # noqa: S104 - the pod's own address is not known here
            "--port",
            str(PORT_ENGINE),
        ],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - an emptyDir of the pod
        "ports": [{"name": "http", "containerPort": PORT_ENGINE, "protocol": "TCP"}],
        "resources": _resources(references, effective),
        "securityContext": container_security(),
        "startupProbe": {
            "httpGet": {"path": PATH_READY, "port": "http"},
            "periodSeconds": PROBE_PERIOD_S,
            "timeoutSeconds": 5,
            "failureThreshold": math.ceil(startup_s(references.checkpoint.size_bytes) / PROBE_PERIOD_S),
        },
        "readinessProbe": {
            "httpGet": {"path": PATH_READY, "port": "http"},
            "periodSeconds": PROBE_PERIOD_S,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        "livenessProbe": {
            "httpGet": {"path": PATH_HEALTH, "port": "http"},
            "periodSeconds": 10,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
        "lifecycle": {"preStop": {"exec": {"command": _drain_command(effective)}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": MODEL_VOLUME, "mountPath": MODEL_DIR, "readOnly": True},
            {"name": "config", "mountPath": CONFIG_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod
        ],
    }


def _drain_command(effective: Effective) -> list[str]:
    wait_s = str(longest_request_s(effective))
    return ["python", "-m", "forebay.engine", "drain", "--port", str(PORT_ENGINE), "--timeout-s", wait_s]


def _resources(references: References, effective: Effective) -> dict[str, Any]:
    """The user's resources, devices of the class, and defaults where the user named neither request nor limit."""
    engine, gpu = references.deployment.spec.engine, references.gpu_class.spec
    given = engine.resources if engine else None
    requests = dict((given.requests if given else None) or {})
    limits = dict((given.limits if given else None) or {})
    size = references.checkpoint.size_bytes
    weights = UNKNOWN_SIZE_MEMORY_BYTES if size is None else size
    cache = int(effective.get("kv_cache_bytes", 0)) or AUTOMATIC_CACHE_BYTES
    memory = weights + cache + PROCESS_MEMORY_BYTES
    for name, value in (("cpu", DEFAULT_CPU_REQUEST), ("memory", str(memory))):
        if name not in requests and name not in limits:
            requests[name] = value
    if gpu.resource is not None:
        requests[gpu.resource.name] = gpu.resource.count
        limits[gpu.resource.name] = gpu.resource.count
    return {key: dict(sorted(value.items())) for key, value in (("limits", limits), ("requests", requests)) if value}


def _placement(gpu: GPUClassSpec) -> dict[str, Any]:
    """Where the pods may go: labels of the class, exact products, tolerations. Empty for an unrestricted class."""
    placement: dict[str, Any] = {}
    match = gpu.match
    if match is not None and match.node_selector:
        placement["nodeSelector"] = dict(sorted(match.node_selector.items()))
    if match is not None and match.product_labels:
        expressions = [{"key": p.key, "operator": "In", "values": list(p.values)} for p in match.product_labels]
        terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        placement["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    if gpu.tolerations:
        placement["tolerations"] = [t.model_dump(by_alias=True, exclude_none=True) for t in gpu.tolerations]
    return placement
