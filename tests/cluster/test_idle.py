"""An operator with nothing to do writes nothing: twenty deployments, sixty seconds, the API server's audit log.

One deployment serves, four are scaled to zero with their routers up, eight wait for a Model that does not exist, seven
are stalled by a spec that cannot be realised. All are watched, swept and looked at as ever; the only write of the
operator in that time is the renewal of its Lease.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deploy import ROOT, SYSTEM_NAMESPACE, quickstart_documents, wait_for_condition
from eventually import eventually
from real_cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ASLEEP = 4
WAITING = 8
STALLED = 7
WINDOW_S = 60.0


def documents(cluster: Cluster) -> list[dict[str, Any]]:
    """The model, the one that serves, those that sleep and those that wait."""
    kinds = {"Model", "ModelDeployment"}
    model, serving = (doc for doc in quickstart_documents(cluster.images) if doc["kind"] in kinds)
    spec = serving["spec"]
    specs = {
        **{f"asleep-{index}": {**spec, "replicas": 0} for index in range(ASLEEP)},
        **{f"waiting-{index}": {**spec, "modelRef": {"name": "not-there"}} for index in range(WAITING)},
        **{f"stalled-{index}": {**spec, "engine": {"config": {"no_such_key": 1}}} for index in range(STALLED)},
    }
    copies = [{**serving, "metadata": {"name": name}, "spec": changed} for name, changed in specs.items()]
    return [model, serving, *copies]


def conditions(cluster: Cluster, namespace: str) -> dict[str, dict[str, str]]:
    """Reason of each condition, by deployment."""
    items = cluster.target.get("modeldeployments", "-n", namespace)["items"]
    return {
        item["metadata"]["name"]: {c["type"]: c["reason"] for c in (item.get("status") or {}).get("conditions") or ()}
        for item in items
    }


def writes_of_the_operator(audit_log: Path, since: datetime) -> Counter[str]:
    """Writes by the operator's service account after a moment, each as `verb resource/name`."""
    user = f"system:serviceaccount:{SYSTEM_NAMESPACE}:"
    found: Counter[str] = Counter()
    with audit_log.open(encoding="utf-8") as lines:
        for line in lines:
            if user not in line:
                continue
            event = json.loads(line)
            if datetime.fromisoformat(event["requestReceivedTimestamp"]) < since:
                continue
            if event["verb"] in {"get", "list", "watch"} or not event["user"]["username"].startswith(user):
                continue
            ref = event["objectRef"]
            found[f"{event['verb']} {ref['resource']}/{ref.get('name', '')}"] += 1
    return found


def audit_log() -> Path:
    """The API server's audit log, on this machine."""
    argv = [sys.executable, str(ROOT / "hack" / "cluster" / "status.py"), "--json"]
    return Path(json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)["audit_log"])


def lease_name(cluster: Cluster) -> str:
    """The Lease of the installed chart."""
    leases = cluster.target.get("leases", "-n", SYSTEM_NAMESPACE)["items"]
    return str(leases[0]["metadata"]["name"])


def test_an_idle_operator_writes_nothing_but_its_lease(cluster: Cluster, namespace: str) -> None:
    cluster.target.apply(documents(cluster), namespace)
    wait_for_condition(cluster.target, namespace, "chat", "Ready", deadline_s=300)
    for index in range(ASLEEP):
        wait_for_condition(cluster.target, namespace, f"asleep-{index}", "Ready", deadline_s=120)
    reasons = {"waiting": (WAITING, "ModelNotFound"), "stalled": (STALLED, "UnknownEngineConfig")}

    def all_reported() -> bool:
        found = conditions(cluster, namespace)
        return all(
            found[f"{prefix}-{index}"].get("Ready") == reason
            for prefix, (count, reason) in reasons.items()
            for index in range(count)
        )

    eventually(all_reported, 60, "each deployment says what it waits for")
    assert len(conditions(cluster, namespace)) == 20
    log = audit_log()
    lease = f"update leases/{lease_name(cluster)}"

    def is_quiet() -> bool:
        """Ten seconds without another write: the last pods have settled."""
        since = datetime.now(UTC)
        time.sleep(10)
        return not writes_of_the_operator(log, since).keys() - {lease}

    eventually(is_quiet, 120, "the operator comes to rest")
    start = datetime.now(UTC)
    time.sleep(WINDOW_S)
    writes = writes_of_the_operator(log, start)
    assert set(writes) == {lease}
    assert writes[lease] >= WINDOW_S / 10 - 2, "the audit log shows that the operator lives"
    assert conditions(cluster, namespace)["chat"]["Servable"] == "Routable"
