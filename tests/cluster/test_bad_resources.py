"""Bad resources on a real API server: refused with the field named, or accepted and explained by a condition."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bad_resources import BadResource, bad_resources, prepared_documents
from eventually import eventually
from real_cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CLUSTER_WIDE = {"GPUClass", "EngineRelease"}


def by_name(item: BadResource) -> str:
    return item.name


@pytest.fixture(scope="module")
def prepared(cluster: Cluster, namespace: str) -> Iterator[str]:
    """The namespace with the sound objects that bad ones refer to."""
    documents = prepared_documents()
    cluster.target.apply(documents, namespace)
    yield namespace
    for document in documents:
        if document["kind"] in CLUSTER_WIDE:
            cluster.kubectl("delete", document["kind"], document["metadata"]["name"], "--ignore-not-found")


@pytest.mark.parametrize("bad", bad_resources(refused=True), ids=by_name)
def test_a_bad_resource_is_refused_and_the_field_named(cluster: Cluster, namespace: str, bad: BadResource) -> None:
    done = cluster.kubectl("apply", "-n", namespace, "-f", str(bad.path), check=False)
    assert done.returncode != 0, done.stdout
    for fragment in bad.fragments:
        assert fragment in done.stderr


@pytest.mark.parametrize("bad", bad_resources(refused=False), ids=by_name)
def test_a_bad_resource_gets_a_condition_with_field_and_fix(cluster: Cluster, prepared: str, bad: BadResource) -> None:
    kind, name = bad.document["kind"], bad.document["metadata"]["name"]
    expected = bad.condition
    assert expected is not None
    cluster.kubectl("apply", "-n", prepared, "-f", str(bad.path))
    try:
        condition = eventually(
            lambda: _condition(cluster, prepared, bad, expected.type),
            deadline_s=30,
            what=f"{kind} {name} has condition {expected.type}",
        )
        assert (condition["status"], condition["reason"]) == (expected.status, expected.reason)
        for fragment in bad.fragments:
            assert fragment in condition["message"]
    finally:
        cluster.kubectl("delete", "-n", prepared, kind, name, "--wait=true")


def test_a_bad_deployment_starts_no_pod(cluster: Cluster, prepared: str) -> None:
    pods = cluster.target.get("pods", "-n", prepared, "-l", "forebay.dev/deployment=bad,forebay.dev/role=engine")
    assert pods["items"] == []


def _condition(cluster: Cluster, namespace: str, bad: BadResource, kind: str) -> dict[str, Any] | None:
    """The condition as reported for the current generation, or None."""
    name = bad.document["metadata"]["name"]
    found = cluster.kubectl("get", bad.document["kind"], name, "-n", namespace, "-o", "json").stdout
    document = json.loads(found)
    conditions: list[dict[str, Any]] = (document.get("status") or {}).get("conditions") or []
    return next(
        (
            item
            for item in conditions
            if item["type"] == kind and item["observedGeneration"] == document["metadata"]["generation"]
        ),
        None,
    )
