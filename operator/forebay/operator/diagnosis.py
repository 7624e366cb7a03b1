"""Why pods do not come up, in the user's words: the first problem found and what to do about it.

Looks only at pods that are not ready. The order of checks is the order in which a pod comes up: creation, scheduling,
volumes, init containers, containers. Called by `status`.
"""

from collections.abc import Iterable
from typing import Any, Final

from forebay.operator.conditions import Reason
from forebay.operator.desired.kinds import DEPLOYMENT
from forebay.operator.desired.model_source import FETCH_CONTAINER
from forebay.operator.observed import is_live, is_ready, pod_condition
from forebay.operator.references import Problem
from forebay.operator.snapshot import Json

_PULL_REASONS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
        "ImageVolumeMountFailed",
    }
)
_CONFIG_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_MOUNT_EVENTS: Final = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})

LOOP_RESTARTS: Final = 3
"""Restarts from which a container that is not ready counts as looping also while it tries again."""


def refused(workloads: Iterable[Json]) -> Problem | None:
    """Why the API server does not accept the pods of a Deployment, or None."""
    for workload in workloads:
        if workload["kind"] != DEPLOYMENT.kind:
            continue
        for condition in (workload.get("status") or {}).get("conditions") or []:
            if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
                message = str(condition.get("message", ""))
                return Problem(Reason.PODS_REFUSED, f"pods are refused: {message}; {_refusal_fix(message)}")
    return None


def diagnose(pods: Iterable[Json], events: Iterable[Json]) -> Problem | None:
    """The first problem among the pods that are not ready, in order of their names."""
    newest = {str((e.get("involvedObject") or {}).get("name")): e for e in events if e.get("reason") in _MOUNT_EVENTS}
    for pod in pods:
        if not is_live(pod) or is_ready(pod):
            continue
        problem = _diagnose_pod(pod, newest.get(str(pod["metadata"]["name"])))
        if problem is not None:
            return problem
    return None


def _diagnose_pod(pod: Json, mount_event: Json | None) -> Problem | None:
    name = pod["metadata"]["name"]
    scheduled = pod_condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return Problem(
            Reason.UNSCHEDULABLE,
            f"pod {name} cannot be scheduled: {scheduled.get('message', '')}; free or add nodes of the GPUClass, or "
            "ask for less in spec.engine.resources",
        )
    status = pod.get("status") or {}
    for container in status.get("initContainerStatuses") or []:
        problem = _diagnose_container(name, container)
        if problem is not None:
            return problem
    for container in status.get("containerStatuses") or []:
        problem = _diagnose_container(name, container)
        if problem is not None:
            return problem
    if mount_event is not None and _waits_for_volumes(status):
        return Problem(
            Reason.MOUNT_FAILED,
            f"pod {name} waits for a volume: {mount_event.get('message', '')}; check the source of the Model and the "
            "Secrets that the deployment names",
        )
    return None


def _waits_for_volumes(status: Json) -> bool:
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    waiting = [((item.get("state") or {}).get("waiting") or {}).get("reason") for item in containers]
    return not containers or any(reason in {"ContainerCreating", "PodInitializing"} for reason in waiting)


def _diagnose_container(pod: str, container: Json) -> Problem | None:
    state = container.get("state") or {}
    waiting: Json = state.get("waiting") or {}
    ended: Json = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    reason, detail = waiting.get("reason"), str(waiting.get("message", ""))
    where = f"container {container.get('name')} of pod {pod}"
    if reason in _PULL_REASONS:
        return Problem(
            Reason.IMAGE_PULL_FAILED,
            f"{where} waits for its image: {_pull_failure(detail)}; check spec.image of the EngineRelease, the image "
            "of the Model's source and the pull secrets",
        )
    if reason in _CONFIG_REASONS:
        return Problem(
            Reason.CONTAINER_CONFIG_ERROR,
            f"{where} cannot be created: {detail}; create what is missing or correct its name",
        )
    if not _failed(ended):
        return None
    if ended.get("reason") == "OOMKilled":
        return Problem(
            Reason.OUT_OF_MEMORY,
            f"{where} was killed for memory; raise spec.engine.resources.limits.memory or lower "
            "spec.cache.device.bytes",
        )
    last = _tail(ended)
    if container.get("name") == FETCH_CONTAINER:
        return Problem(
            Reason.FETCH_FAILED, f"{where} could not download the weights: {last}; check the source of the Model"
        )
    # Between two attempts of a loop the container runs for a while; the report must not flicker with it.
    if reason == "CrashLoopBackOff" or int(container.get("restartCount", 0)) >= LOOP_RESTARTS:
        return Problem(
            Reason.CRASH_LOOP, f"{where} keeps failing: {last}; read its log with kubectl logs {pod} --previous"
        )
    return None


def _pull_failure(detail: str) -> str:
    """What the pull said: the kubelet shows it alone after a try and quotes it while it waits for the next."""
    return detail.rpartition("ErrImagePull: ")[2]


def _failed(ended: Json) -> bool:
    return bool(ended) and ended.get("exitCode", 0) != 0


def _tail(ended: Json) -> str:
    """The last line of what the container said, at most 300 characters."""
    lines = [line.strip() for line in str(ended.get("message") or "").splitlines() if line.strip()]
    said: Any = lines[-1][-300:] if lines else f"no message, reason {ended.get('reason', 'unknown')}"
    return f"exit code {ended.get('exitCode')}: {said}"


def _refusal_fix(message: str) -> str:
    if "hostPath" in message:
        return (
            "source.hostPath is for development: use source.image or source.pvc, or a namespace whose Pod Security "
            "level is privileged"
        )
    if "PodSecurity" in message:
        return "remove the field from spec.engine.pod or use a namespace with a weaker Pod Security level"
    if "quota" in message:
        return "raise the quota of the namespace or lower spec.replicas and spec.engine.resources"
    if "serviceaccount" in message.lower():
        return "create the ServiceAccount or correct spec.engine.pod.serviceAccountName"
    return "correct spec.engine.pod or the policy that refuses them"
