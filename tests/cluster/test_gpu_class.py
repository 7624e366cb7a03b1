"""GPU classes on a node that is given a GPU by patching its capacity and labels: counts, placement, and refusal."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from deploy import quickstart_documents, release_document
from eventually import eventually
from real_cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

GPU = "nvidia.com/gpu"


def patch_node(cluster: Cluster, gpus: str | None, product: str | None) -> None:
    """Set or remove the node's GPU capacity and product label."""
    node = cluster.target.get("nodes")["items"][0]["metadata"]["name"]
    labels = json.dumps({"metadata": {"labels": {"nvidia.com/gpu.product": product}}})
    capacity = json.dumps({"status": {"capacity": {GPU: gpus}, "allocatable": {GPU: gpus}}})
    cluster.kubectl("patch", "node", node, "--type=merge", "-p", labels)
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", capacity)


@pytest.fixture(scope="module")
def gpu_class(cluster: Cluster) -> Iterator[str]:
    """A GPUClass for the patched node; both are taken back afterwards."""
    patch_node(cluster, "4", "NVIDIA-H200")
    document = {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "GPUClass",
        "metadata": {"name": "patched-h200"},
        "spec": {
            "architecture": "sm90",
            "precisions": ["bf16"],
            "memoryBytes": 151_397_597_184,
            "resource": {"name": GPU, "count": 1},
            "match": {"productLabels": [{"key": "nvidia.com/gpu.product", "values": ["NVIDIA-H200"]}]},
        },
    }
    cluster.target.apply([document], "default")
    yield "patched-h200"
    cluster.kubectl("delete", "gpuclass", "patched-h200")
    patch_node(cluster, None, None)


def deployment(cluster: Cluster, gpu_class: str, release: str) -> list[dict[str, Any]]:
    """The quickstart's Model and ModelDeployment on another GPU class and release."""
    documents = [item for item in quickstart_documents(cluster.images) if item["kind"] in {"Model", "ModelDeployment"}]
    for item in documents:
        if item["kind"] == "ModelDeployment":
            item["spec"] |= {"gpuClassRef": {"name": gpu_class}, "engineReleaseRef": {"name": release}}
    return documents


def status(cluster: Cluster, gpu_class: str) -> dict[str, Any]:
    """Status of the class."""
    found: dict[str, Any] = cluster.target.get("gpuclass", gpu_class).get("status", {})
    return found


def test_the_class_counts_nodes_and_devices(cluster: Cluster, gpu_class: str) -> None:
    found = eventually(lambda: status(cluster, gpu_class), 60, "the class has a status")
    assert (found["nodes"], found["total"], found["free"]) == (1, 4, 4)


def test_a_release_without_the_architecture_is_refused_by_name(
    cluster: Cluster, namespace: str, gpu_class: str
) -> None:
    cluster.target.apply(deployment(cluster, gpu_class, "forebay-0.1.0"), namespace)

    def stalled() -> dict[str, Any] | None:
        conditions = cluster.target.get("mdep", "chat", "-n", namespace).get("status", {}).get("conditions", [])
        return next((entry for entry in conditions if entry["type"] == "Stalled"), None)

    found = eventually(stalled, 60, "the deployment is stalled")
    assert found["reason"] == "ArchitectureNotCompiled"
    assert "sm90" in found["message"]


def test_an_engine_on_the_class_asks_for_its_device_and_takes_one(
    cluster: Cluster, namespace: str, gpu_class: str
) -> None:
    release = release_document(cluster.images, "for-sm90")
    release["spec"] |= {
        "architectures": ["sm90"],
        "precisions": [{"architecture": "sm90", "precisions": ["bf16"]}],
        "defaults": [],
    }
    cluster.target.apply([release, *deployment(cluster, gpu_class, "for-sm90")], namespace)

    def scheduled() -> dict[str, Any] | None:
        items = cluster.target.get("pods", "-n", namespace, "-l", "forebay.dev/role=engine")["items"]
        return next((item["spec"] for item in items if item["spec"].get("nodeName")), None)

    spec = eventually(scheduled, 90, "an engine pod has a node")
    assert spec["containers"][0]["resources"]["limits"][GPU] == "1"
    eventually(lambda: status(cluster, gpu_class).get("free") == 3, 60, "the class counts the device as taken")
    cluster.kubectl("delete", "mdep", "chat", "-n", namespace, "--wait=true")
    eventually(lambda: status(cluster, gpu_class).get("free") == 4, 120, "the device is free again")
    cluster.kubectl("delete", "enginerelease", "for-sm90")
