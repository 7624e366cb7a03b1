"""Verbs on a run: a RolloutAction is created, bound to the run by its uid, and its verdict is waited for."""

import time
from collections.abc import Callable
from typing import Any, Final

from forebay.cli.kubectl import Cluster, CommandFailed
from forebay.contract.names import API_VERSION, GROUP

WAIT_S: Final = 15.0
POLL_S: Final = 0.3


def say(
    cluster: Cluster,
    verb: str,
    deployment: str,
    *,
    reason: str,
    step: str | None,
    dry_run: bool,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Say `verb` about the deployment's last run; returns what it does. Raises `CommandFailed` when it is refused."""
    rollout = last_rollout(cluster, deployment)
    metadata = rollout["metadata"]
    spec: dict[str, Any] = {
        "rolloutRef": {"name": metadata["name"], "uid": metadata["uid"]},
        "verb": verb,
        "reason": reason,
    }
    if step is not None:
        spec["step"] = step
    action = {
        "apiVersion": f"{GROUP}/{API_VERSION}",
        "kind": "RolloutAction",
        "metadata": {"generateName": f"{metadata['name']}-{verb}-"},
        "spec": spec,
    }
    created = cluster.create(action, dry_run=dry_run)
    if dry_run:
        return f"would say {verb} about Rollout {metadata['name']}; the API server accepts the action"
    return _verdict(cluster, created["metadata"]["name"], now_s, sleep)


def last_rollout(cluster: Cluster, deployment: str) -> dict[str, Any]:
    """The run that a deployment's status names."""
    found = cluster.get("modeldeployment", deployment)
    if found is None:
        raise CommandFailed(f"ModelDeployment {deployment} does not exist in this namespace")
    name = ((found.get("status") or {}).get("rolloutRef") or {}).get("name")
    rollout = cluster.get("rollout", name) if name else None
    if rollout is None:
        raise CommandFailed(f"ModelDeployment {deployment} has no rollout yet")
    return rollout


def _verdict(cluster: Cluster, name: str, now_s: Callable[[], float], sleep: Callable[[float], None]) -> str:
    end_s = now_s() + WAIT_S
    while True:
        status = (cluster.get("rolloutaction", name) or {}).get("status") or {}
        if status.get("phase") == "Accepted":
            return str(status["message"])
        if status.get("phase") == "Refused":
            raise CommandFailed(f"refused: {status['message']}")
        if now_s() > end_s:
            raise CommandFailed(f"RolloutAction {name} was not judged within {WAIT_S:.0f} s; is the operator running?")
        sleep(POLL_S)
