"""A router waits as long as the longest request that its engines allow."""

import pytest

from forebay.api.modeldeployment import ModelDeploymentSpec
from forebay.operator.desired.metadata import Owner
from forebay.operator.desired.router import STOP_MARGIN_S, router_objects
from forebay.operator.snapshot import Settings

SPEC = {
    "modelRef": {"name": "small"},
    "precision": "bf16",
    "gpuClassRef": {"name": "cpu"},
    "engineReleaseRef": {"name": "forebay-0.1.0"},
}


@pytest.mark.parametrize(
    ("more", "longest_s"),
    [
        ({}, 600),
        ({"limits": {"maxSeconds": 120}}, 120),
        ({"engine": {"config": {"max_seconds": 3600.5}}}, 3601),
        ({"engine": {"config": {"max_seconds": "soon"}}}, 600),
    ],
)
def test_the_grace_and_the_timeout_follow_the_longest_request(more: dict[str, object], longest_s: int) -> None:
    spec = ModelDeploymentSpec.model_validate(SPEC | more)
    _, workload = router_objects(Owner("shop", "chat", "uid-1"), spec, Settings("router:1", "forebay-system"))
    pod = workload["spec"]["template"]["spec"]
    arguments = pod["containers"][0]["args"]
    assert pod["terminationGracePeriodSeconds"] == longest_s + STOP_MARGIN_S
    assert arguments[arguments.index("--response-timeout-seconds") + 1] == str(longest_s + STOP_MARGIN_S)
