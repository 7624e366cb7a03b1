"""The router of a deployment: Service and Deployment. Not part of a revision: a change rolls routers, not engines.

A router that is asked to stop goes on accepting while the cluster forgets its address, and then gets the time of the
longest request to finish its streams.
"""

import hashlib
import json
import math
from typing import Any, Final

from forebay.api.modeldeployment import ModelDeploymentSpec
from forebay.contract.names import (
    LABEL_REVISION,
    PATH_HEALTH,
    PATH_READY,
    PORT_ROUTER,
    PORT_ROUTER_ADMIN,
    PORT_SERVICE,
    ROLE_ROUTER,
    router_name,
)
from forebay.operator.desired.kinds import DEPLOYMENT, SERVICE
from forebay.operator.desired.metadata import Owner, child, labels, selector
from forebay.operator.desired.security import container_security, pod_security
from forebay.operator.effective import DEFAULT_MAX_SECONDS
from forebay.operator.snapshot import Json, Settings

KEYS_DIR: Final = "/etc/forebay/keys"
STOP_MARGIN_S: Final = 35
"""What a router pod gets beyond the longest request: the time in which it still accepts, and some slack."""


def router_objects(owner: Owner, spec: ModelDeploymentSpec, settings: Settings) -> tuple[dict[str, Any], ...]:
    """Service and Deployment of the routers."""
    service = {
        "spec": {
            "selector": selector(owner, ROLE_ROUTER),
            "ports": [{"name": "http", "port": PORT_SERVICE, "targetPort": "http", "protocol": "TCP"}],
        }
    }
    template = _template(owner, spec, settings)
    replicas = (spec.router.replicas if spec.router else None) or 1
    workload = {
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": selector(owner, ROLE_ROUTER)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": template,
        }
    }
    return (
        child(SERVICE, owner, owner.name, service, role=ROLE_ROUTER),
        child(DEPLOYMENT, owner, router_name(owner.name), workload, role=ROLE_ROUTER),
    )


def router_revision(workload: Json) -> str:
    """The revision label that a router Deployment gives to its pods."""
    return str(workload["spec"]["template"]["metadata"]["labels"][LABEL_REVISION])


def _template(owner: Owner, spec: ModelDeploymentSpec, settings: Settings) -> dict[str, Any]:
    keys = spec.router.api_keys_secret_ref if spec.router else None
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    if keys is not None:
        volumes.append({"name": "api-keys", "secret": {"secretName": keys.name}})
    pod = {
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "serviceAccountName": router_name(owner.name),
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": _longest_request_s(spec) + STOP_MARGIN_S,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector(owner, ROLE_ROUTER)},
            }
        ],
        "containers": [_container(owner, spec, settings)],
        "volumes": volumes,
    }
    digest = hashlib.sha256(json.dumps(pod, sort_keys=True).encode()).hexdigest()[:10]
    return {"metadata": {"labels": labels(owner, ROLE_ROUTER, digest)}, "spec": pod}


def _longest_request_s(spec: ModelDeploymentSpec) -> int:
    """By the deployment alone: the router must not wait for a release to be readable."""
    limited = spec.limits.max_seconds if spec.limits else None
    configured = (spec.engine.config or {}).get("max_seconds") if spec.engine else None
    given = [value for value in (limited, configured) if isinstance(value, int | float) and value > 0]
    return math.ceil(max(given, default=DEFAULT_MAX_SECONDS))


def _container(owner: Owner, spec: ModelDeploymentSpec, settings: Settings) -> dict[str, Any]:
    arguments = ["--deployment", owner.name, "--namespace", owner.namespace]
    arguments += ["--port", str(PORT_ROUTER), "--admin-port", str(PORT_ROUTER_ADMIN)]
    arguments += ["--response-timeout-seconds", str(_longest_request_s(spec) + STOP_MARGIN_S)]
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - an emptyDir of the pod
    if spec.router is not None and spec.router.api_keys_secret_ref is not None:
        arguments += ["--api-keys-dir", KEYS_DIR]
        mounts.append({"name": "api-keys", "mountPath": KEYS_DIR, "readOnly": True})
    return {
        "name": "router",
        "image": settings.router_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "forebay.router"],
        "args": arguments,
        "ports": [
            {"name": "http", "containerPort": PORT_ROUTER, "protocol": "TCP"},
            {"name": "admin", "containerPort": PORT_ROUTER_ADMIN, "protocol": "TCP"},
        ],
        "resources": _resources(spec),
        "securityContext": container_security(),
        "readinessProbe": {
            "httpGet": {"path": PATH_READY, "port": "admin"},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        "livenessProbe": {
            "httpGet": {"path": PATH_HEALTH, "port": "admin"},
            "periodSeconds": 10,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _resources(spec: ModelDeploymentSpec) -> dict[str, Any]:
    given = spec.router.resources if spec.router else None
    requests = dict((given.requests if given else None) or {})
    limits = dict((given.limits if given else None) or {})
    for name, value in (("cpu", "100m"), ("memory", "128Mi")):
        if name not in requests and name not in limits:
            requests[name] = value
    return {key: dict(sorted(value.items())) for key, value in (("limits", limits), ("requests", requests)) if value}
