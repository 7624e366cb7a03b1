"""The bad resources of the cluster tests, judged without a cluster: by schema with CEL, the models and the operator."""

from datetime import UTC, datetime
from typing import Any

import pytest

from bad_resources import BadResource, bad_resources, prepared_documents
from forebay.api.crd import root_schema
from forebay.api.kinds import kind_of, parse_document
from forebay.contract.errors import InvalidSpec
from forebay.operator.actions import PatchStatus, Plan
from forebay.operator.inventory import reconcile_gpu_class, reconcile_model, reconcile_release
from forebay.operator.reconcile import reconcile_deployment
from forebay.operator.snapshot import (
    DeploymentSnapshot,
    GPUClassSnapshot,
    ModelSnapshot,
    ReleaseSnapshot,
    Settings,
)
from structural import problems

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REFUSED = bad_resources(refused=True)
REPORTED = bad_resources(refused=False)


def by_name(item: BadResource) -> str:
    return item.name


def test_there_are_many_of_both_sorts() -> None:
    assert len(REFUSED) >= 30
    assert len(REPORTED) >= 15


@pytest.mark.parametrize("bad", REFUSED, ids=by_name)
def test_schema_and_cel_refuse_it_and_name_the_field(bad: BadResource) -> None:
    found = "\n".join(problems(root_schema(kind_of(bad.document)), bad.document))
    for fragment in bad.fragments:
        assert fragment in found


@pytest.mark.parametrize("bad", REFUSED, ids=by_name)
def test_the_models_refuse_it_too(bad: BadResource) -> None:
    with pytest.raises(InvalidSpec):
        parse_document(bad.document)


@pytest.mark.parametrize("bad", REPORTED, ids=by_name)
def test_the_operator_reports_it_by_a_condition(bad: BadResource) -> None:
    assert problems(root_schema(kind_of(bad.document)), bad.document) == []
    expected = bad.condition
    assert expected is not None
    conditions = {item["type"]: item for item in conditions_of(plan_for(bad.document))}
    condition = conditions[expected.type]
    assert (condition["status"], condition["reason"]) == (expected.status, expected.reason)
    for fragment in bad.fragments:
        assert fragment in condition["message"]
    assert conditions["Ready"]["status"] == "False"


@pytest.mark.parametrize("document", prepared_documents(), ids=lambda item: item["metadata"]["name"])
def test_what_bad_resources_refer_to_is_sound(document: dict[str, Any]) -> None:
    assert problems(root_schema(kind_of(document)), document) == []


def conditions_of(plan: Plan) -> list[dict[str, Any]]:
    (patch,) = [action for action in plan.actions if isinstance(action, PatchStatus)]
    conditions: list[dict[str, Any]] = patch.status["conditions"]
    return conditions


def plan_for(document: dict[str, Any]) -> Plan:
    """The operator's plan for a document that was just created, beside the prepared objects and one ordinary node."""
    metadata = {"namespace": "bad", "uid": "00000000-0000-0000-0000-000000000001", "generation": 1}
    created = {**document, "metadata": {**metadata, **document["metadata"]}}
    name = document["metadata"]["name"]
    match document["kind"]:
        case "Model":
            return reconcile_model(ModelSnapshot("bad", name, created), NOW)
        case "GPUClass":
            return reconcile_gpu_class(GPUClassSnapshot(name, created, nodes=(ordinary_node(),), pods=()), NOW)
        case "EngineRelease":
            return reconcile_release(ReleaseSnapshot(name, created), NOW)
        case _:
            return reconcile_deployment(deployment_snapshot(created), NOW)


def deployment_snapshot(document: dict[str, Any]) -> DeploymentSnapshot:
    spec = document["spec"]
    known = {(item["kind"], item["metadata"]["name"]): item for item in prepared_documents()}
    return DeploymentSnapshot(
        namespace="bad",
        name=document["metadata"]["name"],
        deployment=document,
        model=known.get(("Model", spec["modelRef"]["name"])),
        gpu_class=known.get(("GPUClass", spec["gpuClassRef"]["name"])),
        release=known.get(("EngineRelease", spec["engineReleaseRef"]["name"])),
        children=(),
        pods=(),
        events=(),
        routers=(),
        settings=Settings(router_image="forebay.dev/router:1", operator_namespace="forebay-system"),
    )


def ordinary_node() -> dict[str, Any]:
    return {
        "metadata": {"name": "node-1", "labels": {}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4"}},
    }
