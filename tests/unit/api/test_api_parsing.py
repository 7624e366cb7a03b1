"""Reading objects: strict in the spec, lenient in the status, and errors that name the field."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from forebay.api.kinds import kind_of, parse_document
from forebay.api.modeldeployment import ModelDeployment
from forebay.api.shape import parse, path_of
from forebay.contract.errors import InvalidSpec

ROOT = Path(__file__).resolve().parents[3]


def deployment(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "forebay.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "chat"},
        "spec": {
            "modelRef": {"name": "m"},
            "precision": "bf16",
            "gpuClassRef": {"name": "cpu"},
            "engineReleaseRef": {"name": "r"},
            **spec,
        },
    }


def test_absent_fields_stay_absent() -> None:
    spec = parse(ModelDeployment, deployment()).spec
    assert spec.replicas is None
    assert spec.cache is None


def test_what_the_server_adds_to_metadata_is_no_error() -> None:
    document = deployment()
    document["metadata"] |= {"uid": "u", "generation": 3, "managedFields": [{"manager": "kubectl"}], "selfLink": "x"}
    assert parse(ModelDeployment, document).metadata.generation == 3


def test_a_status_of_a_newer_operator_is_read() -> None:
    document = deployment()
    document["status"] = {"replicas": 2, "rolloutRef": {"name": "later"}, "roles": []}
    status = parse(ModelDeployment, document).status
    assert status is not None
    assert status.replicas == 2


def test_errors_name_every_field_and_the_first_one_is_the_field_of_the_error() -> None:
    document = deployment(precision="fp9", replicas="2", foo=1)
    del document["spec"]["gpuClassRef"]
    with pytest.raises(InvalidSpec) as caught:
        parse(ModelDeployment, document)
    assert caught.value.field == "spec.precision"
    for fragment in (
        "spec.precision: Input should be 'fp32', 'bf16'",
        "spec.gpuClassRef: required field is missing",
        "spec.replicas: Input should be a valid integer",
        "spec.foo: unknown field",
    ):
        assert fragment in caught.value.message


@pytest.mark.parametrize("value", [True, 1.5, "1", [1]])
def test_only_json_integers_are_integers(value: Any) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.replicas"):
        parse(ModelDeployment, deployment(replicas=value))


def test_a_path_is_written_as_kubectl_writes_it() -> None:
    assert path_of(("spec", "checkpoints", 0, "source")) == "spec.checkpoints[0].source"
    assert path_of(()) == "(root)"


def test_a_document_of_another_kind_is_refused_with_the_kinds_we_know() -> None:
    with pytest.raises(InvalidSpec, match="Model, GPUClass, EngineRelease, ModelDeployment") as caught:
        kind_of({"apiVersion": "forebay.dev/v1alpha1", "kind": "Deployment"})
    assert caught.value.field == "kind"


def test_a_document_of_another_version_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"forebay\.dev/v1alpha1") as caught:
        kind_of({"apiVersion": "forebay.dev/v2", "kind": "Model"})
    assert caught.value.field == "apiVersion"


def examples() -> list[Path]:
    return sorted((ROOT / "examples").rglob("*.yaml"))


@pytest.mark.parametrize("path", examples(), ids=lambda path: path.name)
def test_every_example_is_valid(path: Path) -> None:
    documents = [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document]
    ours = [document for document in documents if document["apiVersion"].startswith("forebay.dev/")]
    assert ours, "an example without a Forebay resource"
    for document in ours:
        parse_document(document)


def pages() -> list[Path]:
    return sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_resources_in_the_documentation_are_valid(path: Path) -> None:
    for block in path.read_text("utf-8").split("```yaml\n")[1:]:
        for document in yaml.safe_load_all(block.partition("```")[0]):
            if isinstance(document, dict) and str(document.get("apiVersion")).startswith("forebay.dev/"):
                parse_document(document)
