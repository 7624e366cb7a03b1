"""What the API server makes of the CRDs: names, columns, documentation, subresources, and nothing written back."""

import json
from typing import Any

import pytest
import yaml

from forebay.api.kinds import KINDS
from real_cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "forebay.dev/v1alpha1",
    "kind": "ModelDeployment",
    "metadata": {"name": "columns"},
    "spec": {
        "modelRef": {"name": "some-model"},
        "precision": "bf16",
        "gpuClassRef": {"name": "no-such-class"},
        "engineReleaseRef": {"name": "no-such-release"},
        "engine": {"config": {"threads": 2, "nested": {"kept": True}}},
    },
}


@pytest.fixture
def deployment(cluster: Cluster, namespace: str) -> str:
    """The namespace with one deployment whose references do not exist, so that no pod starts; replicas is absent."""
    cluster.kubectl("delete", "mdep", "columns", "-n", namespace, "--ignore-not-found", "--wait=true")
    cluster.target.apply([DEPLOYMENT], namespace)
    return namespace


def test_the_definitions_are_accepted_as_structural(cluster: Cluster) -> None:
    for kind in KINDS:
        conditions = cluster.target.get("crd", kind.crd_name)["status"]["conditions"]
        states = {item["type"]: item["status"] for item in conditions}
        assert states["Established"] == "True"
        assert states["NamesAccepted"] == "True"
        assert states.get("NonStructuralSchema", "False") == "False"


def test_short_names_and_the_category_list_the_kinds(cluster: Cluster, namespace: str) -> None:
    for name in [kind.short_name for kind in KINDS] + ["forebay"]:
        cluster.kubectl("get", name, "-n", namespace)


def test_kubectl_explain_knows_every_part_of_a_spec(cluster: Cluster) -> None:
    said = cluster.kubectl("explain", "mdep.spec.limits.maxSeconds").stdout
    assert "maxSeconds <integer>" in said
    assert "Longest time a request may take" in said


def test_the_row_of_a_deployment_shows_what_runs_where(cluster: Cluster, deployment: str) -> None:
    header, row = cluster.kubectl("get", "mdep", "columns", "-n", deployment).stdout.splitlines()
    for title in ("READY", "SERVABLE", "MODEL", "PRECISION", "GPU", "RELEASE", "REPLICAS", "AGE"):
        assert title in header
    for cell in ("some-model", "bf16", "no-such-class", "no-such-release"):
        assert cell in row
    wide = cluster.kubectl("get", "mdep", "columns", "-n", deployment, "-o", "wide").stdout
    assert "URL" in wide
    assert "REASON" in wide


def test_the_server_adds_nothing_to_a_spec_and_keeps_free_maps(cluster: Cluster, deployment: str) -> None:
    stored = cluster.target.get("mdep", "columns", "-n", deployment)
    assert stored["spec"] == DEPLOYMENT["spec"]


def test_kubectl_scale_sets_replicas_that_were_absent(cluster: Cluster, deployment: str) -> None:
    cluster.kubectl("scale", "mdep/columns", "-n", deployment, "--replicas=3")
    assert cluster.target.get("mdep", "columns", "-n", deployment)["spec"]["replicas"] == 3
    path = f"/apis/forebay.dev/v1alpha1/namespaces/{deployment}/modeldeployments/columns/scale"
    scale = json.loads(cluster.kubectl("get", "--raw", path).stdout)
    assert scale["spec"]["replicas"] == 3


def test_the_status_is_a_subresource_that_apply_does_not_touch(cluster: Cluster, deployment: str) -> None:
    forged = {**DEPLOYMENT, "status": {"url": "http://elsewhere"}}
    cluster.target.apply([forged], deployment)
    stored = cluster.target.get("mdep", "columns", "-n", deployment)
    assert (stored.get("status") or {}).get("url") != "http://elsewhere"


def test_a_valid_object_is_taken_by_server_side_apply_of_another_manager(cluster: Cluster, deployment: str) -> None:
    wanted = yaml.safe_dump({**DEPLOYMENT, "spec": {**DEPLOYMENT["spec"], "restartToken": "again"}})
    arguments = ("apply", "--server-side", "--field-manager=gitops", "--force-conflicts", "-n", deployment, "-f", "-")
    cluster.kubectl(*arguments, stdin=wanted)
    assert cluster.target.get("mdep", "columns", "-n", deployment)["spec"]["restartToken"] == "again"


def test_the_chart_of_definitions_renders_them_all_and_refuses_unknown_values(cluster: Cluster) -> None:
    version = json.loads(cluster.kubectl("version", "-o", "json").stdout)["serverVersion"]["gitVersion"]
    chart = ("template", "forebay-crds", "charts/forebay-crds", "--kube-version", version)
    rendered = list(yaml.safe_load_all(cluster.target.helm(*chart)))
    assert sorted(document["metadata"]["name"] for document in rendered) == sorted(kind.crd_name for kind in KINDS)
    for document in rendered:
        assert document["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    refused = cluster.target.run("helm", *chart, "--set", "replicas=1", check=False)
    assert refused.returncode != 0
    assert "replicas" in refused.stderr
