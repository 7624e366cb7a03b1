"""Resources in, manifests out: byte for byte, and each manifest valid for Kubernetes in strict mode."""

from typing import Any

import kubernetes_validate
import pytest
import yaml

from forebay.api.crd import root_schema
from forebay.api.kinds import kind_of
from golden_cases import applied_objects, case_names, dump, expected_path, render_case
from structural import problems

KUBERNETES = ("1.36", "1.37")
CASES = case_names()


def test_there_are_cases() -> None:
    assert len(CASES) >= 8


@pytest.mark.parametrize("name", CASES)
def test_a_case_renders_exactly_what_is_kept(name: str) -> None:
    kept = expected_path(name).read_text(encoding="utf-8")
    assert dump(render_case(name)) == kept, "run `make golden` and review the difference"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("version", KUBERNETES)
def test_every_manifest_is_valid_for_kubernetes(name: str, version: str) -> None:
    count = 0
    for document in applied_objects(name):
        if document["apiVersion"].startswith("forebay.dev/"):
            assert problems(root_schema(kind_of(document)), document) == []
        else:
            kubernetes_validate.validate(document, version, strict=True)
        count += 1
    assert count > 0


def _pod_specs(name: str) -> list[dict[str, Any]]:
    return [item["spec"]["template"]["spec"] for item in applied_objects(name) if item["kind"] == "Deployment"]


@pytest.mark.parametrize("name", CASES)
def test_every_pod_meets_the_restricted_security_profile(name: str) -> None:
    for pod in _pod_specs(name):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["readOnlyRootFilesystem"] is True
            assert container["imagePullPolicy"] == "IfNotPresent"
            assert not any("hostPort" in port for port in container.get("ports", []))


@pytest.mark.parametrize("name", CASES)
def test_no_secret_value_is_ever_rendered(name: str) -> None:
    text = yaml.safe_dump(render_case(name))
    for pod in _pod_specs(name):
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            for variable in container.get("env", []):
                assert "TOKEN" not in variable["name"] or "secretKeyRef" in variable["valueFrom"]
    assert "kind: Secret" not in text
