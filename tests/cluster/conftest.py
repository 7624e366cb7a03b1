"""One real cluster for all cluster tests: images in, charts installed, one namespace for each test module.

The cluster and the operator stay up after the run, so that the next run starts in seconds; `make cluster-down`
removes them.
"""

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from deploy import (
    ROOT,
    create_namespace,
    install_charts,
    local_target,
    quickstart_documents,
    release_document,
)
from image_store import build_images, import_images
from real_cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster with the charts of this checkout, the GPU class `cpu` and the release of this checkout."""
    subprocess.run([sys.executable, str(ROOT / "hack" / "cluster" / "up.py")], cwd=ROOT, check=True)
    images = build_images()
    import_images()
    target = local_target()
    install_charts(target, images)
    cluster_wide = [document for document in quickstart_documents(images) if document["kind"] == "GPUClass"]
    target.apply([release_document(images), *cluster_wide], "default")
    return Cluster(target, images)


@pytest.fixture(scope="module")
def namespace(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """A restricted namespace for one test module, deleted with everything in it afterwards."""
    name = re.sub("[^a-z0-9]+", "-", request.module.__name__.rpartition(".")[2].lower()).strip("-")
    cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=true")
    create_namespace(cluster.target, name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
