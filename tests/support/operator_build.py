"""Builders of resources and observed objects for tests of the operator's pure core.

Every builder returns plain JSON as the API server would. Keyword arguments replace the part that a test is about.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from forebay.contract.wire import EndpointReport, RouterReport
from forebay.operator.snapshot import DeploymentSnapshot, Json, RouterObservation, Settings

NOW = datetime(2027, 1, 1, 12, 0, 0, tzinfo=UTC)
SETTINGS = Settings(router_image="registry.test/router:0.1.0", operator_namespace="forebay-system")
NAMESPACE = "shop"
UID = "0f0e0d0c-0000-4000-8000-000000000001"
API = "forebay.dev/v1alpha1"


def model(name: str = "tiny", *, accepted: bool = True, **checkpoint: Any) -> dict[str, Any]:
    """A Model with one bf16 checkpoint from an image."""
    entry = {
        "precision": "bf16",
        "source": {"image": {"reference": "registry.test/models/tiny:1"}},
        "sizeBytes": 270_000_000,
        **checkpoint,
    }
    return {
        "apiVersion": API,
        "kind": "Model",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": "m-1", "generation": 1},
        "spec": {"checkpoints": [entry], "license": {"spdx": "Apache-2.0", "accepted": accepted}},
    }


def gpu_class(name: str = "cpu", **spec: Any) -> dict[str, Any]:
    """A GPUClass; ordinary nodes unless `spec` says otherwise."""
    body = {"architecture": "cpu", "precisions": ["bf16", "fp32"], **spec}
    return {
        "apiVersion": API,
        "kind": "GPUClass",
        "metadata": {"name": name, "uid": "g-1", "generation": 1},
        "spec": body,
    }


def h100_class() -> dict[str, Any]:
    """A class of accelerators with a product label, a taint and a counted resource."""
    return gpu_class(
        "h100",
        architecture="sm90",
        precisions=["bf16", "fp8"],
        memoryBytes=80 * 2**30,
        resource={"name": "nvidia.com/gpu", "count": 2},
        match={
            "nodeSelector": {"pool": "gpu"},
            "productLabels": [{"key": "nvidia.com/gpu.product", "values": ["NVIDIA-H100-80GB-HBM3"]}],
        },
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    )


def release(name: str = "v1", **spec: Any) -> dict[str, Any]:
    """An EngineRelease compiled for cpu and sm90."""
    keys = [
        {"key": "served_names", "type": "list"},
        {"key": "dtype", "type": "string", "values": ["bf16", "fp32"]},
        {"key": "kv_cache_bytes", "type": "integer", "minimum": 1},
        {"key": "page_tokens", "type": "integer", "minimum": 1, "maximum": 256},
        {"key": "max_running", "type": "integer", "minimum": 1, "maximum": 4096},
        {"key": "max_waiting", "type": "integer", "minimum": 0},
        {"key": "max_batch_tokens", "type": "integer", "minimum": 1},
        {"key": "max_seconds", "type": "integer", "minimum": 1},
        {"key": "max_tokens", "type": "integer", "minimum": 1},
        {"key": "default_max_tokens", "type": "integer", "minimum": 1},
        {"key": "max_prompt_tokens", "type": "integer", "minimum": 0},
        {"key": "prefix_reuse", "type": "boolean"},
        {"key": "log_level", "type": "string", "values": ["debug", "info"]},
        {"key": "threshold", "type": "number", "minimum": 0, "maximum": 1},
        {"key": "determinism", "type": "string", "values": ["default", "batch_invariant"]},
        {"key": "admission", "type": "string", "values": ["max_utilization", "guaranteed_no_evict"]},
        {"key": "speculation", "type": "string", "values": ["off", "ngram", "draft"]},
        {"key": "draft_tokens", "type": "integer", "minimum": 1, "maximum": 16},
        {"key": "structured_max_tokens", "type": "integer", "minimum": 0},
        {"key": "structured_max_seconds", "type": "number", "minimum": 0},
        {"key": "structured_max_whitespace", "type": "integer", "minimum": 0},
    ]
    body = {
        "version": "0.1.0",
        "image": "registry.test/engine:0.1.0",
        "architectures": ["cpu", "sm90"],
        "precisions": [
            {"architecture": "cpu", "precisions": ["bf16", "fp32"]},
            {"architecture": "sm90", "precisions": ["bf16", "fp8"]},
        ],
        "configSchema": keys,
        "defaults": [{"architecture": "cpu", "values": {"max_running": 16, "kv_cache_bytes": 268435456}}],
        **spec,
    }
    return {
        "apiVersion": API,
        "kind": "EngineRelease",
        "metadata": {"name": name, "uid": "e-1", "generation": 1},
        "spec": body,
    }


AT_ONCE: dict[str, Any] = {"steps": [{"name": "all", "capacity": "100%", "traffic": 100}], "bakeSeconds": 0}
"""The rollout policy with the fewest steps."""


def deployment(name: str = "chat", *, status: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A ModelDeployment of `model()` on `gpu_class()` by `release()` that rolls out at once.

    A spec field given as None is left out.
    """
    body = {
        "modelRef": {"name": "tiny"},
        "precision": "bf16",
        "gpuClassRef": {"name": "cpu"},
        "engineReleaseRef": {"name": "v1"},
        "rollout": AT_ONCE,
        **spec,
    }
    document = {
        "apiVersion": API,
        "kind": "ModelDeployment",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": UID, "generation": 1},
        "spec": {key: value for key, value in body.items() if value is not None},
    }
    return document if status is None else {**document, "status": dict(status)}


def snapshot(document: Json | None = None, **parts: Any) -> DeploymentSnapshot:
    """A snapshot in which all references exist and nothing was created yet."""
    given: dict[str, Any] = {
        "deployment": deployment() if document is None else document,
        "model": model(),
        "gpu_class": gpu_class(),
        "release": release(),
        "children": (),
        "pods": (),
        "events": (),
        "routers": (),
        "settings": SETTINGS,
        **parts,
    }
    name = "chat" if document is None else document["metadata"]["name"]
    return DeploymentSnapshot(namespace=NAMESPACE, name=name, **given)


def pod(
    name: str,
    role: str,
    revision: str,
    *,
    ready: bool = True,
    terminating: bool = False,
    status: Mapping[str, Any] | None = None,
    owner: str = "chat",
) -> dict[str, Any]:
    """A pod of deployment `owner` as the kubelet reports it; `status` replaces the whole status."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": NAMESPACE,
        "uid": f"uid-{name}",
        "labels": {
            "app.kubernetes.io/managed-by": "forebay-operator",
            "forebay.dev/deployment": owner,
            "forebay.dev/deployment-uid": UID,
            "forebay.dev/role": role,
            "forebay.dev/revision": revision,
        },
    }
    if terminating:
        metadata["deletionTimestamp"] = "2027-01-01T12:00:00Z"
    state = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True" if ready else "False"},
        ],
        "containerStatuses": [{"name": role, "ready": ready, "state": {"running": {}}}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": "node-1"},
        "status": dict(status) if status is not None else state,
    }


def report(epoch: int, *endpoints: EndpointReport, synced: bool = True) -> RouterReport:
    """A router's report."""
    return RouterReport(epoch=epoch, synced=synced, endpoints=tuple(endpoints))


def endpoint(pod_name: str, revision: str, *, routable: bool = True, inflight: int = 0) -> EndpointReport:
    """One endpoint of a report."""
    return EndpointReport(
        address="10.0.0.1:8000",
        pod=pod_name,
        revision=revision,
        ready=routable,
        routable=routable,
        inflight=inflight,
        load_age_s=0.1,
    )


def router(pod_name: str, found: RouterReport | None, error: str = "") -> RouterObservation:
    """What the shell read from a router pod."""
    return RouterObservation(pod=pod_name, report=found, error=error)
