"""Why pods do not come up: each known cause gives its reason, what was seen, and a fix."""

from typing import Any

import pytest

import operator_build as build
from forebay.operator.conditions import Reason
from forebay.operator.diagnosis import diagnose, refused

PLACED = {"type": "PodScheduled", "status": "True"}
NOT_READY = {"type": "Ready", "status": "False"}


def _pod(**status: Any) -> dict[str, Any]:
    given = {"phase": "Pending", "conditions": [PLACED, NOT_READY], **status}
    return build.pod("engine-1", "engine", "abc", status=given)


def _waiting(reason: str, message: str = "what happened", **more: Any) -> list[dict[str, Any]]:
    return [{"name": "engine", "state": {"waiting": {"reason": reason, "message": message}}, **more}]


def _ended(reason: str, message: str = "", code: int = 1) -> dict[str, Any]:
    return {"terminated": {"reason": reason, "message": message, "exitCode": code}}


CASES: list[tuple[dict[str, Any], Reason, str]] = [
    (
        {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient cpu"}]},
        Reason.UNSCHEDULABLE,
        "Insufficient cpu",
    ),
    ({"containerStatuses": _waiting("ImagePullBackOff")}, Reason.IMAGE_PULL_FAILED, "spec.image of the EngineRelease"),
    ({"containerStatuses": _waiting("ErrImageNeverPull")}, Reason.IMAGE_PULL_FAILED, "what happened"),
    (
        {"containerStatuses": _waiting("CreateContainerConfigError", 'secret "token" not found')},
        Reason.CONTAINER_CONFIG_ERROR,
        'secret "token" not found',
    ),
    (
        {"containerStatuses": _waiting("CrashLoopBackOff", lastState=_ended("OOMKilled", code=137))},
        Reason.OUT_OF_MEMORY,
        "limits.memory",
    ),
    (
        {"containerStatuses": _waiting("CrashLoopBackOff", lastState=_ended("Error", "line one\nbad model file\n"))},
        Reason.CRASH_LOOP,
        "exit code 1: bad model file",
    ),
    (
        {
            "initContainerStatuses": [
                {"name": "fetch-model", "state": _ended("Error", "sha256 differs from the given digest")}
            ]
        },
        Reason.FETCH_FAILED,
        "sha256 differs",
    ),
]


@pytest.mark.parametrize(("status", "reason", "text"), CASES)
def test_a_known_cause_is_reported_with_what_was_seen(status: dict[str, Any], reason: Reason, text: str) -> None:
    problem = diagnose([_pod(**status)], [])
    assert problem is not None
    assert problem.reason is reason
    assert text in problem.message


def test_a_first_failure_that_the_kubelet_still_retries_is_no_crash_loop() -> None:
    assert diagnose([_pod(containerStatuses=[{"name": "engine", "state": _ended("Error", "oops")}])], []) is None


def test_a_loop_stays_a_loop_while_the_container_tries_again() -> None:
    again = {"name": "engine", "state": {"running": {}}, "lastState": _ended("Error", "oops"), "restartCount": 3}
    problem = diagnose([_pod(containerStatuses=[again])], [])
    assert problem is not None
    assert problem.reason is Reason.CRASH_LOOP
    assert diagnose([_pod(containerStatuses=[{**again, "restartCount": 1}])], []) is None


def test_a_container_that_ended_well_is_no_problem() -> None:
    ended = [{"name": "fetch-model", "state": _ended("Completed", code=0)}]
    assert diagnose([_pod(initContainerStatuses=ended)], []) is None


def test_a_ready_or_a_draining_pod_is_not_looked_at() -> None:
    stale = {"lastState": _ended("OOMKilled", code=137)}
    ready = build.pod("engine-1", "engine", "abc")
    ready["status"]["containerStatuses"][0] |= stale
    going = _pod(containerStatuses=_waiting("ImagePullBackOff"))
    going["metadata"]["deletionTimestamp"] = "2027-01-01T12:00:00Z"
    assert diagnose([ready, going], []) is None


def _event(pod: str, reason: str) -> dict[str, Any]:
    return {
        "involvedObject": {"kind": "Pod", "name": pod},
        "reason": reason,
        "message": 'MountVolume.SetUp failed for volume "api-keys": secret "keys" not found',
    }


def test_a_volume_that_cannot_be_mounted_is_known_from_the_events_of_the_pod() -> None:
    waiting = _pod(containerStatuses=_waiting("ContainerCreating", ""))
    problem = diagnose([waiting], [_event("engine-1", "FailedMount")])
    assert problem is not None
    assert problem.reason is Reason.MOUNT_FAILED
    assert 'secret "keys" not found' in problem.message
    assert diagnose([waiting], [_event("other", "FailedMount")]) is None
    assert diagnose([waiting], [_event("engine-1", "Unhealthy")]) is None


def test_a_mount_event_of_before_is_forgotten_once_the_container_runs() -> None:
    running = _pod(containerStatuses=[{"name": "engine", "state": {"running": {}}}])
    assert diagnose([running], [_event("engine-1", "FailedMount")]) is None


def test_a_pull_that_fails_is_reported_in_the_same_words_between_two_tries() -> None:
    failed = diagnose([_pod(containerStatuses=_waiting("ErrImagePull", "x:1: not found"))], [])
    quoted = 'Back-off pulling image "x:1": ErrImagePull: x:1: not found'
    assert diagnose([_pod(containerStatuses=_waiting("ImagePullBackOff", quoted))], []) == failed
    assert failed is not None
    assert "x:1: not found" in failed.message


def test_the_first_pod_by_name_decides() -> None:
    pods = [_pod(containerStatuses=_waiting("ImagePullBackOff")), _pod(**CASES[0][0])]
    problem = diagnose(pods, [])
    assert problem is not None
    assert problem.reason is Reason.IMAGE_PULL_FAILED


def _deployment(message: str, status: str = "True") -> dict[str, Any]:
    condition = {"type": "ReplicaFailure", "status": status, "reason": "FailedCreate", "message": message}
    return {"kind": "Deployment", "status": {"conditions": [condition]}}


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ('violates PodSecurity "restricted": hostPath volumes (volume "model")', "source.hostPath is for development"),
        ('violates PodSecurity "restricted": runAsUser=0', "remove the field from spec.engine.pod"),
        ("exceeded quota: team-a", "raise the quota"),
        ('error looking up service account: serviceaccount "x" not found', "create the ServiceAccount"),
        ("admission webhook denied the request", "correct spec.engine.pod"),
    ],
)
def test_pods_that_the_api_server_refuses_are_reported_with_a_fix(message: str, fix: str) -> None:
    problem = refused([_deployment(message)])
    assert problem is not None
    assert problem.reason is Reason.PODS_REFUSED
    assert message in problem.message
    assert fix in problem.message


def test_a_refusal_that_is_over_is_no_problem() -> None:
    assert refused([_deployment("x", status="False"), {"kind": "Deployment"}, {"kind": "Service"}]) is None
