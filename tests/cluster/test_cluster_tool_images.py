"""The images as the node sees them: what they carry, how large they are, and as whom they run."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from deploy import ROOT, Images, Target, create_namespace, local_target
from eventually import eventually
from image_store import build_images, import_images

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

NAMESPACE = "image-contents"
LIMIT_BYTES = 250_000_000
# Mount points of the container are other devices than its root, so only the image itself is counted.
INSPECTION = """
import importlib.util, json, os
root = os.stat("/").st_dev
size = 0
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.lstat(os.path.join(folder, name)).st_dev == root]
    size += sum(os.lstat(os.path.join(folder, name)).st_size for name in files)
known = [name for name in ("torch", "kopf", "aiohttp") if importlib.util.find_spec(name)]
planes = sorted(os.listdir("/opt/forebay/application/forebay"))
print(json.dumps({"bytes": size, "modules": known, "planes": planes, "uid": os.getuid()}))
"""


@dataclass(frozen=True, slots=True)
class Node:
    """The local cluster with the images of this checkout."""

    target: Target
    images: Images

    def inspect(self, name: str) -> dict[str, Any]:
        """What the inspection prints inside the image called `name`."""
        container = {
            "name": "inspect",
            "image": getattr(self.images, name),
            "command": ["python", "-c", INSPECTION],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        spec = {
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        self.target.apply([pod], NAMESPACE)

        def printed() -> str | None:
            phase = self.target.get("pod", name, "-n", NAMESPACE)["status"]["phase"]
            assert phase != "Failed", self.target.kubectl("logs", name, "-n", NAMESPACE).stdout
            return self.target.kubectl("logs", name, "-n", NAMESPACE).stdout if phase == "Succeeded" else None

        report: dict[str, Any] = json.loads(eventually(printed, 120, f"the {name} image is inspected"))
        return report


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """The cluster up, the images in it, and an empty restricted namespace."""
    subprocess.run([sys.executable, str(ROOT / "hack" / "cluster" / "up.py")], cwd=ROOT, check=True)
    images = build_images()
    import_images()
    target = local_target()
    target.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true")
    create_namespace(target, NAMESPACE)
    yield Node(target, images)
    target.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.mark.parametrize(
    ("name", "planes"), [("operator", ["api", "contract", "operator"]), ("router", ["contract", "router"])]
)
def test_operator_and_router_images_are_small_without_torch_and_not_root(
    node: Node, name: str, planes: list[str]
) -> None:
    report = node.inspect(name)
    assert report["bytes"] < LIMIT_BYTES
    assert "torch" not in report["modules"]
    assert "aiohttp" in report["modules"]
    assert set(planes) <= set(report["planes"])
    assert "engine" not in report["planes"]
    assert report["uid"] == 65532


def test_the_engine_image_has_torch_and_no_control_plane_and_is_not_root(node: Node) -> None:
    report = node.inspect("engine")
    assert "torch" in report["modules"]
    assert "kopf" not in report["modules"]
    assert not {"operator", "router", "api"} & set(report["planes"])
    assert report["uid"] == 65532


def test_an_unchanged_checkout_builds_no_image_twice(node: Node) -> None:
    def build() -> tuple[str, str]:
        command = [sys.executable, str(ROOT / "hack" / "images" / "build.py")]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        return done.stdout, done.stderr

    known, _ = build()
    assert node.images.model in known
    again, stages = build()
    assert again == known, "the checkout was edited while this test ran, or a key depends on more than the content"
    assert "image: done" not in stages
