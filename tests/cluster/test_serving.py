"""A ModelDeployment's whole life as a user drives it: apply, chat, scale, edit under load, upgrade, delete.

The tests run in order on one deployment, because each stage is where the next one starts.
"""

import json
import time
from typing import Any

import pytest
from openai import OpenAI

from deploy import install_operator, quickstart_documents, wait_for_condition
from eventually import eventually
from load import constant_load
from real_cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAME = "chat"
CHILD_KINDS = (
    "deployments,replicasets,pods,services,endpointslices,configmaps,serviceaccounts,roles,rolebindings,"
    "poddisruptionbudgets,networkpolicies,controllerrevisions,rollouts"
)


def service_url(cluster: Cluster, namespace: str) -> str:
    """The ClusterIP address of the deployment's Service, reachable from the test machine."""
    spec = cluster.target.get("service", NAME, "-n", namespace)["spec"]
    return f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"


def client(cluster: Cluster, namespace: str) -> OpenAI:
    """The official client."""
    return OpenAI(base_url=f"{service_url(cluster, namespace)}/v1", api_key="none", max_retries=0, timeout=120)


def engine_pods(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Name to uid of the engine pods that are not going away."""
    selector = f"forebay.dev/deployment={NAME},forebay.dev/role=engine"
    items = cluster.target.get("pods", "-n", namespace, "-l", selector)["items"]
    staying = [item["metadata"] for item in items if "deletionTimestamp" not in item["metadata"]]
    return {metadata["name"]: metadata["uid"] for metadata in staying}


def test_an_applied_model_becomes_servable(cluster: Cluster, namespace: str) -> None:
    documents = [
        document
        for document in quickstart_documents(cluster.images)
        if document["kind"] in {"Model", "ModelDeployment"}
    ]
    cluster.target.apply(documents, namespace)
    wait_for_condition(cluster.target, namespace, NAME, "Servable", deadline_s=300)
    wait_for_condition(cluster.target, namespace, NAME, "Ready", deadline_s=120)
    row = cluster.kubectl("get", "mdep", NAME, "-n", namespace).stdout
    assert "SERVABLE" in row
    assert "True" in row


def test_it_answers_a_chat_request(cluster: Cluster, namespace: str) -> None:
    answer = client(cluster, namespace).chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=24,
        temperature=0,
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_a_streamed_answer_equals_the_whole_one(cluster: Cluster, namespace: str) -> None:
    question: Any = {
        "model": NAME,
        "messages": [{"role": "user", "content": "Name three colours."}],
        "max_tokens": 24,
        "temperature": 0,
    }
    openai = client(cluster, namespace)
    whole = openai.chat.completions.create(**question).choices[0].message.content
    stream = openai.chat.completions.create(**question, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == whole


def test_scaling_gives_both_engines_traffic(cluster: Cluster, namespace: str) -> None:
    before = engine_pods(cluster, namespace)
    cluster.kubectl("scale", f"modeldeployment/{NAME}", "--replicas=2", "-n", namespace)
    wait_for_condition(cluster.target, namespace, NAME, "Ready", deadline_s=180)
    after = engine_pods(cluster, namespace)
    assert len(after) == 2
    assert before.items() <= after.items(), "scaling restarted an engine"
    with constant_load(service_url(cluster, namespace), NAME, clients=4) as result:
        eventually(lambda: result.answered >= 20, 120, "20 answers")
    assert not result.failures
    assert len(result.endpoints) == 2, result.endpoints


def test_an_edit_makes_a_new_revision_and_fails_no_request(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("scale", f"modeldeployment/{NAME}", "--replicas=1", "-n", namespace)
    wait_for_condition(cluster.target, namespace, NAME, "Ready", deadline_s=120)
    old = engine_pods(cluster, namespace)
    with constant_load(service_url(cluster, namespace), NAME) as result:
        eventually(lambda: result.answered >= 3, 60, "the load runs")
        at_once = {"steps": [{"name": "all", "capacity": "100%", "traffic": 100}], "bakeSeconds": 0}
        patch = json.dumps({"spec": {"scheduling": {"maxRunning": 12}, "rollout": at_once}})
        cluster.kubectl("patch", "modeldeployment", NAME, "-n", namespace, "--type=merge", "-p", patch)
        wait_for_condition(cluster.target, namespace, NAME, "Ready", deadline_s=300)
        answered = result.answered
        eventually(lambda: result.answered >= answered + 5, 60, "the new revision answers")
        eventually(lambda: not old.keys() & engine_pods(cluster, namespace).keys(), 120, "the old revision goes")
    assert result.failures == []
    assert len(result.revisions) == 2, result.revisions


def test_an_operator_upgrade_restarts_no_engine(cluster: Cluster, namespace: str) -> None:
    before = engine_pods(cluster, namespace)
    install_operator(cluster.target, cluster.images, "--set-string", f"podAnnotations.upgraded=at-{int(time.time())}")
    wait_for_condition(cluster.target, namespace, NAME, "Ready", deadline_s=120)
    assert engine_pods(cluster, namespace) == before


def test_engines_serve_without_the_operator_and_are_adopted_again(cluster: Cluster, namespace: str) -> None:
    before = engine_pods(cluster, namespace)
    cluster.target.helm("uninstall", "forebay", "-n", "forebay-system", "--wait")
    try:
        test_it_answers_a_chat_request(cluster, namespace)
        assert engine_pods(cluster, namespace) == before
    finally:
        install_operator(cluster.target, cluster.images)
    cluster.kubectl("scale", f"modeldeployment/{NAME}", "--replicas=2", "-n", namespace)
    wait_for_condition(cluster.target, namespace, NAME, "Ready", deadline_s=180)
    assert before.items() <= engine_pods(cluster, namespace).items()


def test_a_deleted_deployment_leaves_no_child(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("delete", "modeldeployment", NAME, "-n", namespace)

    def left() -> str:
        selector = f"forebay.dev/deployment={NAME}"
        return cluster.kubectl("get", CHILD_KINDS, "-n", namespace, "-l", selector, "-o", "name").stdout

    eventually(lambda: not left(), 180, "no child is left")
