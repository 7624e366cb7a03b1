"""Staged rollouts on a real cluster under constant load: through every step, back by a person, held before a pod.

The tests run in order on one deployment, because each stage is where the next one starts.
"""

import json
import time
from typing import Any

import pytest

from deploy import quickstart_documents, release_document, wait_for_condition
from eventually import eventually
from load import constant_load
from real_cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAME = "chat"
STEPS = [
    {"name": "isolated", "capacity": "1", "traffic": 0},
    {"name": "half", "capacity": "50%", "traffic": 50, "soakSeconds": 5, "gates": [{"name": "errors", "errors": {}}]},
    {"name": "all", "capacity": "100%", "traffic": 100, "soakSeconds": 5, "gates": [{"name": "errors", "errors": {}}]},
]
POLICY = {"steps": STEPS, "bakeSeconds": 5}
WAITING = {"steps": [STEPS[0], {**STEPS[1], "soakSeconds": 3600}, STEPS[2]], "bakeSeconds": 5}


def service_url(cluster: Cluster, namespace: str) -> str:
    """The ClusterIP address of the deployment's Service."""
    spec = cluster.target.get("service", NAME, "-n", namespace)["spec"]
    return f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"


def edit(cluster: Cluster, namespace: str, **spec: Any) -> None:
    """Change fields of the deployment's spec as a user does."""
    patch = json.dumps({"spec": spec})
    cluster.kubectl("patch", "modeldeployment", NAME, "-n", namespace, "--type=merge", "-p", patch)


def last_rollout(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """The newest Rollout, empty while there is none."""
    items: list[dict[str, Any]] = cluster.target.get("rollouts", "-n", namespace)["items"]
    ordered = sorted(items, key=lambda item: int(item["metadata"]["name"].rpartition("-")[2]))
    return ordered[-1] if ordered else {}


def phase(cluster: Cluster, namespace: str) -> str:
    """Phase and step of the newest Rollout."""
    status = last_rollout(cluster, namespace).get("status") or {}
    return f"{status.get('phase')} {status.get('step')}"


def weights(cluster: Cluster, namespace: str) -> dict[str, int]:
    """Shares of the traffic as routers read them."""
    data = cluster.target.get("configmap", f"{NAME}-routes", "-n", namespace)["data"]["routes.json"]
    return {item["revision"]: item["weight"] for item in json.loads(data)["weights"]}


def say(cluster: Cluster, namespace: str, verb: str) -> dict[str, Any]:
    """A RolloutAction on the newest Rollout; returns its status once it was judged."""
    metadata = last_rollout(cluster, namespace)["metadata"]
    name = f"{verb}-{time.monotonic_ns()}"
    action = {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "RolloutAction",
        "metadata": {"name": name},
        "spec": {"rolloutRef": {"name": metadata["name"], "uid": metadata["uid"]}, "verb": verb, "reason": "test"},
    }
    cluster.target.apply([action], namespace)
    found: dict[str, Any] = {}

    def judged() -> bool:
        found.update(cluster.target.get("rolloutaction", name, "-n", namespace).get("status") or {})
        return bool(found)

    eventually(judged, 20, "the action is judged")
    return found


def test_a_first_deployment_needs_no_rollout(cluster: Cluster, namespace: str) -> None:
    documents = [item for item in quickstart_documents(cluster.images) if item["kind"] in {"Model", "ModelDeployment"}]
    for item in documents:
        if item["kind"] == "ModelDeployment":
            item["spec"]["rollout"] = POLICY
    cluster.target.apply(documents, namespace)
    wait_for_condition(cluster.target, namespace, NAME, "Ready", deadline_s=300)
    assert last_rollout(cluster, namespace) == {}


def test_a_change_goes_through_every_step_and_fails_no_request(cluster: Cluster, namespace: str) -> None:
    with constant_load(service_url(cluster, namespace), NAME) as result:
        eventually(lambda: result.answered >= 3, 60, "the load runs")
        edit(cluster, namespace, scheduling={"maxRunning": 12})
        eventually(lambda: phase(cluster, namespace).startswith("Completed"), 240, "the run completes", 1.0)
        answered = result.answered
        eventually(lambda: result.answered >= answered + 5, 60, "the new revision answers")
    assert result.failures == []
    assert len(result.revisions) == 2, result.revisions
    rollout = last_rollout(cluster, namespace)
    assert [item["name"] for item in rollout["status"]["history"]] == ["isolated", "half", "all"]
    gate = rollout["status"]["history"][1]["gates"][0]
    assert gate["verdict"] == "Pass"
    assert {item["name"] for item in gate["evidence"]} >= {"candidateRequests", "candidateErrors"}
    wait_for_condition(cluster.target, namespace, NAME, "Ready", deadline_s=180)
    row = cluster.kubectl("get", "ro", "-n", namespace).stdout
    assert "Completed" in row


def test_an_abort_brings_the_traffic_back_within_five_seconds(cluster: Cluster, namespace: str) -> None:
    stable = cluster.target.get("mdep", NAME, "-n", namespace)["status"]["stableRevision"]
    edit(cluster, namespace, rollout=WAITING, scheduling={"maxRunning": 13})
    with constant_load(service_url(cluster, namespace), NAME) as result:
        eventually(lambda: len(weights(cluster, namespace)) == 2, 240, "half of the traffic moves", 1.0)
        eventually(lambda: len(result.revisions) == 2, 60, "both revisions answer")
        assert say(cluster, namespace, "abort")["phase"] == "Accepted"
        decided_s = time.monotonic()
        eventually(lambda: weights(cluster, namespace) == {stable: 100}, 5, "the traffic is back", 0.1)
        assert time.monotonic() - decided_s <= 5
        eventually(lambda: phase(cluster, namespace).startswith("RolledBack"), 120, "the run is over", 1.0)
    assert result.failures == []
    wait_for_condition(cluster.target, namespace, NAME, "Stalled", deadline_s=60)
    status = cluster.target.get("mdep", NAME, "-n", namespace)["status"]
    shown = {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}
    assert shown["Stalled"] == ("True", "RevisionRejected")
    assert shown["Servable"][0] == "True"
    assert status["rejectedRevisions"] == [last_rollout(cluster, namespace)["spec"]["candidate"]["revision"]]


def test_a_finished_run_takes_no_verb_but_retry_and_its_plan_is_frozen(cluster: Cluster, namespace: str) -> None:
    name = last_rollout(cluster, namespace)["metadata"]["name"]
    assert "is over" in say(cluster, namespace, "pause")["message"]
    patch = json.dumps({"spec": {"generation": 99}})
    refused = cluster.kubectl("patch", "rollout", name, "-n", namespace, "--type=merge", "-p", patch, check=False)
    assert refused.returncode != 0
    assert "spec is frozen" in refused.stderr
    assert say(cluster, namespace, "retry")["phase"] == "Accepted"
    eventually(lambda: last_rollout(cluster, namespace)["metadata"]["name"] != name, 60, "another run opens")


def test_a_spec_that_goes_back_ends_the_run_and_keeps_what_serves(cluster: Cluster, namespace: str) -> None:
    stable = cluster.target.get("mdep", NAME, "-n", namespace)["status"]["stableRevision"]
    edit(cluster, namespace, scheduling={"maxRunning": 12})
    eventually(lambda: phase(cluster, namespace).startswith("Superseded"), 120, "the run ends", 1.0)
    wait_for_condition(cluster.target, namespace, NAME, "Ready", deadline_s=120)
    assert cluster.target.get("mdep", NAME, "-n", namespace)["status"]["stableRevision"] == stable


def test_a_moved_default_is_held_before_a_pod_is_touched(cluster: Cluster, namespace: str) -> None:
    release = release_document(cluster.images, "forebay-moved")
    for entry in release["spec"]["defaults"]:
        entry["values"]["max_waiting"] = 7
    release["spec"]["version"] = "0.1.1"
    cluster.target.apply([release], "default")
    edit(cluster, namespace, engineReleaseRef={"name": "forebay-moved"}, rollout=POLICY)
    eventually(lambda: phase(cluster, namespace).startswith("Preflight"), 60, "the run is held")
    message = last_rollout(cluster, namespace)["status"]["message"]
    assert "max_waiting" in message
    assert "spec.rollout.acceptChanges" in message
    wait_for_condition(cluster.target, namespace, NAME, "Stalled", deadline_s=60)
    edit(cluster, namespace, engineReleaseRef={"name": "forebay-0.1.0"})
    wait_for_condition(cluster.target, namespace, NAME, "Ready", deadline_s=120)
    cluster.kubectl("delete", "enginerelease", "forebay-moved")
