"""Every source of weights ends in an engine that is ready: web server, hub, claimed volume, folder on the node.

The quickstart covers the image volume. The web server and the hub run on the test machine, which pods reach by the
cluster's link; the engine pods are the operator's own.
"""

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deploy import ROOT, create_namespace, wait_for_condition
from eventually import eventually
from real_cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

MODEL_FOLDER = ROOT / ".cache" / "models" / "smollm2-135m-instruct"
MODEL_FILE = MODEL_FOLDER / "SmolLM2-135M-Instruct.Q4_1.gguf"


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a log line for each."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""


@contextmanager
def web_server(folder: Path) -> Iterator[int]:
    """A web server for `folder` on every address of the machine; yields its port."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("0.0.0.0", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def machine_address(cluster: Cluster) -> str:
    """The address by which pods reach the test machine."""
    return cluster.target.run("sh", "-c", "echo $FOREBAY_CLUSTER_HOST").stdout.strip()


@dataclass(frozen=True, slots=True)
class Trial:
    """A Model with one source and a ModelDeployment of it, both called `name`."""

    name: str
    source: dict[str, Any]

    def documents(self) -> list[dict[str, Any]]:
        """The resources to apply."""
        checkpoint = {"precision": "bf16", "sizeBytes": MODEL_FILE.stat().st_size, "source": self.source}
        spec = {"license": {"spdx": "Apache-2.0", "accepted": True}, "checkpoints": [checkpoint]}
        deployment = {
            "modelRef": {"name": self.name},
            "precision": "bf16",
            "gpuClassRef": {"name": "cpu"},
            "engineReleaseRef": {"name": "forebay-0.1.0"},
        }
        return [self._object("Model", spec), self._object("ModelDeployment", deployment)]

    def _object(self, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        return {"apiVersion": "forebay.dev/v1alpha1", "kind": kind, "metadata": {"name": self.name}, "spec": spec}


def becomes_servable(cluster: Cluster, namespace: str, trial: Trial) -> None:
    """Apply the trial, wait until it serves, and take it away again."""
    cluster.target.apply(trial.documents(), namespace)
    try:
        wait_for_condition(cluster.target, namespace, trial.name, "Servable", deadline_s=180)
    finally:
        cluster.kubectl("delete", "mdep,mdl", trial.name, "-n", namespace, "--wait=false")


def test_a_file_on_a_web_server_is_fetched_and_served(cluster: Cluster, namespace: str) -> None:
    digest = sha256(MODEL_FILE.read_bytes()).hexdigest()
    with web_server(MODEL_FOLDER) as port:
        url = f"http://{machine_address(cluster)}:{port}/{MODEL_FILE.name}"
        becomes_servable(cluster, namespace, Trial("from-http", {"http": {"url": url, "sha256": digest}}))


def test_a_file_with_another_digest_is_reported_and_never_served(cluster: Cluster, namespace: str) -> None:
    with web_server(MODEL_FOLDER) as port:
        url = f"http://{machine_address(cluster)}:{port}/{MODEL_FILE.name}"
        trial = Trial("wrong-digest", {"http": {"url": url, "sha256": "0" * 64}})
        cluster.target.apply(trial.documents(), namespace)

        def report() -> str | None:
            conditions = cluster.target.get("mdep", trial.name, "-n", namespace).get("status", {}).get("conditions", [])
            return next((entry["message"] for entry in conditions if entry["reason"] == "FetchFailed"), None)

        message = eventually(report, 150, "the failed fetch is reported")
    assert "sha256" in message.lower()
    cluster.kubectl("delete", "mdep,mdl", trial.name, "-n", namespace, "--wait=false")


def test_a_claimed_volume_is_mounted_and_served(cluster: Cluster, namespace: str) -> None:
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-weights"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "by-hand",
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(MODEL_FOLDER.parent)},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights"},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "by-hand",
            "volumeName": f"{namespace}-weights",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    cluster.target.apply([volume, claim], namespace)
    source = {"pvc": {"claimName": "weights", "path": MODEL_FOLDER.name}}
    try:
        becomes_servable(cluster, namespace, Trial("from-volume", source))
    finally:
        cluster.kubectl("delete", "pvc", "weights", "-n", namespace, "--wait=false")
        cluster.kubectl("delete", "pv", f"{namespace}-weights", "--wait=false")


def test_a_folder_on_the_node_is_refused_by_a_restricted_namespace_with_the_reason(
    cluster: Cluster, namespace: str
) -> None:
    trial = Trial("on-node", {"hostPath": {"path": str(MODEL_FOLDER)}})
    cluster.target.apply(trial.documents(), namespace)

    def refusal() -> str | None:
        conditions = cluster.target.get("mdep", trial.name, "-n", namespace).get("status", {}).get("conditions", [])
        return next((entry["message"] for entry in conditions if entry["reason"] == "PodsRefused"), None)

    assert "hostPath" in eventually(refusal, 90, "the refused pods are reported")
    cluster.kubectl("delete", "mdep,mdl", trial.name, "-n", namespace, "--wait=false")


def test_a_folder_on_the_node_serves_where_it_is_allowed(cluster: Cluster) -> None:
    name = "development"
    create_namespace(cluster.target, name)
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=privileged", "--overwrite")
    try:
        becomes_servable(cluster, name, Trial("on-node", {"hostPath": {"path": str(MODEL_FOLDER)}}))
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false")
