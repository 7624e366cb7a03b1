"""The objects of one engine revision: Deployment, headless Service and ConfigMap.

These three are rendered once, stored in the revision's ControllerRevision and from then on applied from there. The
number of replicas is not part of a revision and is put in when the Deployment is applied.
"""

import json
from collections.abc import Mapping
from typing import Any

from forebay.contract.names import PORT_ENGINE, ROLE_ENGINE, engine_name
from forebay.operator.desired.kinds import CONFIG_MAP, DEPLOYMENT, SERVICE
from forebay.operator.desired.metadata import Owner, child, selector
from forebay.operator.desired.pods import CONFIG_FILE, engine_template, startup_s
from forebay.operator.effective import Effective
from forebay.operator.references import References
from forebay.operator.snapshot import Json, Settings


def engine_objects(
    owner: Owner, revision: str, references: References, effective: Effective, settings: Settings
) -> tuple[dict[str, Any], ...]:
    """ConfigMap, Service and Deployment of a revision, in the order in which they are applied."""
    name = engine_name(owner.name, revision)
    config = {"data": {CONFIG_FILE: json.dumps(effective.to_config(), indent=2, sort_keys=True) + "\n"}}
    service = {
        "spec": {
            "clusterIP": "None",
            "selector": selector(owner, ROLE_ENGINE, revision),
            "ports": [{"name": "http", "port": PORT_ENGINE, "targetPort": "http", "protocol": "TCP"}],
        }
    }
    workload = {
        "spec": {
            "progressDeadlineSeconds": 600 + startup_s(references.checkpoint.size_bytes),
            "revisionHistoryLimit": 0,
            "selector": {"matchLabels": selector(owner, ROLE_ENGINE, revision)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": engine_template(owner, revision, references, effective, settings),
        }
    }
    return (
        child(CONFIG_MAP, owner, name, config, role=ROLE_ENGINE, revision=revision),
        child(SERVICE, owner, name, service, role=ROLE_ENGINE, revision=revision),
        child(DEPLOYMENT, owner, name, workload, role=ROLE_ENGINE, revision=revision),
    )


def with_replicas(workload: Json, replicas: int) -> dict[str, Any]:
    """A stored Deployment with the number of pods that the rollout wants now."""
    spec: Mapping[str, Any] = workload["spec"]
    return {**workload, "spec": {**spec, "replicas": replicas}}
