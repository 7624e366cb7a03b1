"""Status of Models, GPUClasses and EngineReleases."""

from typing import Any

import pytest

import operator_build as build
from forebay.operator.actions import PatchStatus, Plan
from forebay.operator.reconcile import reconcile_gpu_class, reconcile_model, reconcile_release
from forebay.operator.snapshot import GPUClassSnapshot, ModelSnapshot, ReleaseSnapshot


def _status(plan: Plan) -> dict[str, Any]:
    (patch,) = [action for action in plan.actions if isinstance(action, PatchStatus)]
    return patch.status


def _conditions(plan: Plan) -> dict[str, tuple[str, str]]:
    return {item["type"]: (item["status"], item["reason"]) for item in _status(plan)["conditions"]}


def _model(document: dict[str, Any]) -> Plan:
    return reconcile_model(ModelSnapshot(build.NAMESPACE, "tiny", document), build.NOW)


def _release(document: dict[str, Any]) -> Plan:
    return reconcile_release(ReleaseSnapshot("v1", document), build.NOW)


def _class(document: dict[str, Any], nodes: list[dict[str, Any]], pods: list[dict[str, Any]] | None = None) -> Plan:
    snapshot = GPUClassSnapshot(document["metadata"]["name"], document, tuple(nodes), tuple(pods or []))
    return reconcile_gpu_class(snapshot, build.NOW)


def _node(name: str, *, ready: bool = True, gpus: int = 0, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {key.replace("_", "/"): value for key, value in labels.items()}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "4", **({"nvidia.com/gpu": str(gpus)} if gpus else {})},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def _gpu_node(name: str, product: str | None = "NVIDIA-H100-80GB-HBM3", **given: Any) -> dict[str, Any]:
    node = _node(name, gpus=8, **given)
    node["metadata"]["labels"] |= {"pool": "gpu"} | ({"nvidia.com/gpu.product": product} if product else {})
    return node


def test_a_model_with_an_accepted_licence_is_available() -> None:
    plan = _model(build.model())
    assert _conditions(plan) == {"Ready": ("True", "Valid"), "LicenseAccepted": ("True", "Accepted")}
    assert _status(plan)["checkpoints"] == [{"precision": "bf16", "phase": "Available"}]


def test_a_model_whose_licence_is_not_accepted_is_blocked() -> None:
    plan = _model(build.model(accepted=False))
    assert _conditions(plan)["LicenseAccepted"] == ("False", "LicenseNotAccepted")
    assert _conditions(plan)["Stalled"] == ("True", "LicenseNotAccepted")
    assert _status(plan)["checkpoints"] == [{"precision": "bf16", "phase": "Blocked"}]


def test_a_release_that_passes_its_own_schema_is_ready() -> None:
    assert _conditions(_release(build.release())) == {"Ready": ("True", "Valid")}


def test_a_release_with_a_default_outside_its_schema_is_stalled_and_names_the_entry() -> None:
    plan = _release(build.release(defaults=[{"architecture": "cpu", "values": {"max_running": 0}}]))
    assert _conditions(plan)["Stalled"] == ("True", "InvalidSpec")
    assert "spec.defaults[cpu].values.max_running" in _status(plan)["conditions"][0]["message"]


def test_a_cpu_class_counts_the_ready_nodes() -> None:
    cordoned = _node("c")
    cordoned["spec"]["unschedulable"] = True
    status = _status(_class(build.gpu_class(), [_node("a"), _node("b", ready=False), cordoned]))
    assert (status["nodes"], status["total"], status["free"]) == (2, 2, 1)


def test_devices_are_counted_on_nodes_of_exactly_the_product_and_pods_take_them() -> None:
    nodes = [_gpu_node("a"), _gpu_node("b"), _gpu_node("old", "NVIDIA-A100-SXM4-80GB"), _node("plain")]
    request = {"resources": {"requests": {"nvidia.com/gpu": "2"}}}
    pods = [
        {"metadata": {}, "spec": {"nodeName": "a", "containers": [request, request]}, "status": {"phase": "Running"}},
        {"metadata": {}, "spec": {"nodeName": "old", "containers": [request]}, "status": {"phase": "Running"}},
        {"metadata": {}, "spec": {"nodeName": "b", "containers": [request]}, "status": {"phase": "Succeeded"}},
        {"metadata": {}, "spec": {"nodeName": "b", "containers": [{}]}, "status": {"phase": "Running"}},
    ]
    status = _status(_class(build.h100_class(), nodes, pods))
    assert (status["nodes"], status["total"], status["free"]) == (2, 16, 12)
    assert status["ambiguousNodes"] == []


def test_a_node_without_a_product_label_is_ambiguous_and_not_used() -> None:
    plan = _class(build.h100_class(), [_gpu_node("a"), _gpu_node("b", product=None)])
    assert _status(plan)["ambiguousNodes"] == ["b"]
    assert _status(plan)["nodes"] == 1
    assert "b" in _status(plan)["conditions"][0]["message"]


def test_only_ambiguous_nodes_make_a_class_not_ready() -> None:
    plan = _class(build.h100_class(), [_gpu_node("b", product=None)])
    assert _conditions(plan)["Ready"] == ("False", "AmbiguousNodes")


def test_a_class_without_nodes_says_what_to_correct() -> None:
    plan = _class(build.h100_class(), [_node("plain")])
    assert _conditions(plan) == {"Ready": ("False", "NoNodes")}
    assert "spec.match" in _status(plan)["conditions"][0]["message"]


@pytest.mark.parametrize("passes", [_model, _release, lambda document: _class(document, [_node("a")])])
def test_a_second_pass_writes_nothing(passes: Any) -> None:
    document = {_model: build.model, _release: build.release}.get(passes, build.gpu_class)()
    document["status"] = _status(passes(document))
    assert passes(document) == Plan()


@pytest.mark.parametrize("passes", [_model, _release, lambda document: _class(document, [])])
def test_an_object_that_is_going_away_gets_an_empty_plan(passes: Any) -> None:
    document = {_model: build.model, _release: build.release}.get(passes, build.gpu_class)()
    document["metadata"]["deletionTimestamp"] = "2027-01-01T12:00:00Z"
    assert passes(document) == Plan()


@pytest.mark.parametrize("passes", [_model, _release, lambda document: _class(document, [])])
def test_a_spec_that_does_not_parse_is_stalled(passes: Any) -> None:
    document = {_model: build.model, _release: build.release}.get(passes, build.gpu_class)()
    document["spec"]["surprise"] = 1
    plan = passes(document)
    assert _conditions(plan)["Stalled"] == ("True", "InvalidSpec")
    assert "spec.surprise" in _status(plan)["conditions"][0]["message"]
