"""Resources that simulations and shell tests apply."""

import json
import re
from collections.abc import Mapping
from typing import Any

from forebay.operator.cluster import FOREBAY_API

Obj = dict[str, Any]

NAMESPACE = "apps"
NAME = "chat"

_UID = re.compile(r"uid-\d+")


def gpu_class(name: str = "cpu") -> Obj:
    """An ordinary CPU class."""
    spec = {"architecture": "cpu", "precisions": ["bf16", "fp32"]}
    return {"apiVersion": FOREBAY_API, "kind": "GPUClass", "metadata": {"name": name}, "spec": spec}


def release(name: str = "forebay-0.1.0", image: str = "forebay/engine:0.1.0") -> Obj:
    """A release for CPUs with a small configuration schema."""
    return {
        "apiVersion": FOREBAY_API,
        "kind": "EngineRelease",
        "metadata": {"name": name},
        "spec": {
            "version": "0.1.0",
            "image": image,
            "architectures": ["cpu"],
            "precisions": [{"architecture": "cpu", "precisions": ["bf16", "fp32"]}],
            "configSchema": [
                {"key": key, "type": "integer", "minimum": 0, "maximum": 2**40, "description": f"The {key}."}
                for key in ("max_running", "max_waiting", "max_batch_tokens", "kv_cache_bytes", "page_tokens")
            ],
            "defaults": [{"architecture": "cpu", "values": {"max_running": 16, "kv_cache_bytes": 1 << 28}}],
        },
    }


def model(name: str = "small") -> Obj:
    """A model in an image volume."""
    return {
        "apiVersion": FOREBAY_API,
        "kind": "Model",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "license": {"spdx": "Apache-2.0", "accepted": True},
            "checkpoints": [
                {
                    "precision": "bf16",
                    "format": "gguf",
                    "sizeBytes": 98_000_000,
                    "source": {"image": {"reference": f"forebay/model-{name}:0.1.0"}},
                }
            ],
        },
    }


def deployment(name: str = NAME, **spec: Any) -> Obj:
    """A ModelDeployment of `model()` on `gpu_class()` with `release()`; `spec` adds or replaces fields."""
    return {
        "apiVersion": FOREBAY_API,
        "kind": "ModelDeployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "modelRef": {"name": "small"},
            "precision": "bf16",
            "gpuClassRef": {"name": "cpu"},
            "engineReleaseRef": {"name": "forebay-0.1.0"},
            "replicas": 1,
            "rollout": AT_ONCE,
            **spec,
        },
    }


AT_ONCE: Obj = {"steps": [{"name": "all", "capacity": "100%", "traffic": 100}], "bakeSeconds": 0}
STAGED: Obj = {
    "steps": [
        {"name": "isolated", "capacity": "1", "traffic": 0},
        {"name": "canary", "capacity": "50%", "traffic": 10, "soakSeconds": 5},
        {"name": "all", "capacity": "100%", "traffic": 100, "soakSeconds": 5, "gates": [{"name": "e", "errors": {}}]},
    ],
    "bakeSeconds": 10,
    "progressDeadlineSeconds": 600,
}


def node(name: str = "node-1") -> Obj:
    """A ready node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64"}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110"},
            "capacity": {"cpu": "16", "memory": "64Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def condition(obj: Mapping[str, Any], kind: str) -> Obj:
    """A condition of an object's status; empty when it is absent."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == kind), {})


def essence(objects: list[Obj]) -> list[str]:
    """What an end state is, without names, versions and times that differ between equal runs."""
    lines = []
    for obj in objects:
        if obj["kind"] in {"Lease", "Event", "Pod", "Node"}:
            continue
        metadata = obj["metadata"]
        kept = {
            "kind": obj["kind"],
            "name": metadata["name"],
            "labels": _without_uid(metadata.get("labels")),
            "body": {k: v for k, v in obj.items() if k not in {"metadata", "status", "apiVersion", "kind", "data"}},
            "conditions": sorted(
                (c["type"], c["status"], c.get("reason")) for c in (obj.get("status") or {}).get("conditions") or ()
            ),
        }
        lines.append(json.dumps(_without_uid(kept), sort_keys=True))
    return sorted(lines)


def _without_uid(value: Any) -> Any:
    text = json.dumps(value, sort_keys=True)
    return json.loads(_UID.sub("UID", text))
