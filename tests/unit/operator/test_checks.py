"""The checks before anything is created: reason, field and fix of each, and that the first problem wins."""

from typing import Any

import pytest

import operator_build as build
from forebay.operator.conditions import Reason
from forebay.operator.intent import Intent, read_intent
from forebay.operator.references import Problem


def _intent(document: dict[str, Any] | None = None, **parts: Any) -> Intent | Problem:
    given = build.deployment() if document is None else document
    return read_intent(given, build.snapshot(given, **parts))


def _problem(document: dict[str, Any] | None = None, **parts: Any) -> Problem:
    found = _intent(document, **parts)
    assert isinstance(found, Problem)
    return found


def test_a_sound_spec_has_an_intent() -> None:
    assert isinstance(_intent(), Intent)


@pytest.mark.parametrize(
    ("part", "reason", "field"),
    [
        ("model", Reason.MODEL_NOT_FOUND, "spec.modelRef.name: Model tiny does not exist in namespace shop"),
        ("gpu_class", Reason.GPU_CLASS_NOT_FOUND, "spec.gpuClassRef.name: GPUClass cpu does not exist"),
        ("release", Reason.ENGINE_RELEASE_NOT_FOUND, "spec.engineReleaseRef.name: EngineRelease v1 does not exist"),
    ],
)
def test_a_missing_reference_is_named_with_its_field(part: str, reason: Reason, field: str) -> None:
    problem = _problem(**{part: None})
    assert problem.reason is reason
    assert problem.message.startswith(field)


def test_a_spec_that_does_not_parse_is_invalid() -> None:
    problem = _problem(build.deployment(replicas=-1))
    assert problem.reason is Reason.INVALID_SPEC
    assert "spec.replicas" in problem.message


def test_a_status_of_another_version_does_not_make_a_spec_invalid() -> None:
    document = build.deployment(status={"conditions": "not a list", "replicas": "many"})
    assert isinstance(_intent(document), Intent)


def test_a_referenced_object_that_does_not_parse_is_an_invalid_reference() -> None:
    broken = build.model()
    del broken["spec"]["license"]
    problem = _problem(model=broken)
    assert problem.reason is Reason.INVALID_REFERENCE
    assert "spec.license" in problem.message


def test_a_licence_must_be_accepted() -> None:
    problem = _problem(model=build.model(accepted=False))
    assert problem.reason is Reason.LICENSE_NOT_ACCEPTED
    assert "spec.license.accepted" in problem.message


def test_the_model_needs_a_checkpoint_of_the_precision() -> None:
    problem = _problem(build.deployment(precision="fp32"))
    assert problem.reason is Reason.PRECISION_NOT_IN_MODEL
    assert "use one of: bf16" in problem.message


def test_the_class_must_list_the_precision() -> None:
    assert _problem(gpu_class=build.gpu_class(precisions=["fp32"])).reason is Reason.PRECISION_NOT_ON_GPU_CLASS


def test_the_release_must_be_compiled_for_exactly_the_architecture() -> None:
    release = build.release(
        architectures=["sm90"], precisions=[{"architecture": "sm90", "precisions": ["bf16"]}], defaults=[]
    )
    problem = _problem(release=release)
    assert problem.reason is Reason.ARCHITECTURE_NOT_COMPILED
    assert "only for: sm90" in problem.message


def test_the_release_must_run_the_precision_on_the_architecture() -> None:
    release = build.release(
        precisions=[
            {"architecture": "cpu", "precisions": ["fp32"]},
            {"architecture": "sm90", "precisions": ["bf16"]},
        ]
    )
    assert _problem(release=release).reason is Reason.PRECISION_NOT_IN_RELEASE


def test_a_release_whose_defaults_break_its_own_schema_is_not_used() -> None:
    release = build.release(defaults=[{"architecture": "cpu", "values": {"max_running": "many"}}])
    problem = _problem(release=release)
    assert problem.reason is Reason.INVALID_REFERENCE
    assert "spec.defaults[cpu].values.max_running" in problem.message


def test_weights_and_cache_must_fit_into_the_memory_limit() -> None:
    document = build.deployment(engine={"resources": {"limits": {"memory": "256Mi"}}})
    problem = _problem(document)
    assert problem.reason is Reason.INSUFFICIENT_MEMORY
    assert problem.message.startswith("spec.engine.resources.limits.memory:")
    assert isinstance(_intent(build.deployment(engine={"resources": {"limits": {"memory": "1Gi"}}})), Intent)


def test_one_engine_may_not_ask_for_more_than_a_cpu_class_allows() -> None:
    document = build.deployment(engine={"resources": {"limits": {"memory": "2Gi"}}})
    assert _problem(document, gpu_class=build.gpu_class(memoryBytes=2**30)).reason is Reason.INSUFFICIENT_MEMORY


def test_weights_and_cache_must_fit_into_the_devices() -> None:
    document = build.deployment(gpuClassRef={"name": "h100"}, cache={"device": {"bytes": 100 * 2**30}})
    fits = build.model(sizeBytes=50 * 2**30)
    too_large = build.model(sizeBytes=70 * 2**30)
    assert isinstance(_intent(document, model=fits, gpu_class=build.h100_class()), Intent)
    problem = _problem(document, model=too_large, gpu_class=build.h100_class())
    assert problem.reason is Reason.INSUFFICIENT_MEMORY
    assert "160.00 GiB" in problem.message


def test_an_unknown_size_of_the_weights_is_no_problem() -> None:
    model = build.model()
    del model["spec"]["checkpoints"][0]["sizeBytes"]
    assert isinstance(_intent(model=model), Intent)


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        ({"containers": []}, "spec.engine.pod.containers: this pod field cannot be overridden"),
        ({"hostNetwork": True}, "spec.engine.pod.hostNetwork"),
        ({"securityContext": {"runAsUser": 0}}, "spec.engine.pod.securityContext"),
        ({"nodeSelector": "gpu"}, "spec.engine.pod.nodeSelector: must be a map"),
        ({"nodeSelector": {"a": 1}}, "every value must be a string"),
        ({"tolerations": []}, "spec.engine.pod.tolerations: must be a list that is not empty"),
        ({"tolerations": ["x"]}, "every entry must be a map"),
        ({"labels": {"forebay.dev/role": "router"}}, "forebay.dev/role belongs to the operator"),
        ({"priorityClassName": 5}, "must be a string"),
    ],
)
def test_pod_overrides_outside_the_allow_list_are_refused_by_name(pod: dict[str, Any], message: str) -> None:
    problem = _problem(build.deployment(engine={"pod": pod}))
    assert problem.reason is Reason.POD_OVERRIDE_NOT_ALLOWED
    assert message in problem.message


def test_a_name_that_is_too_long_is_invalid() -> None:
    problem = _problem(build.deployment("a" * 41))
    assert problem.reason is Reason.INVALID_SPEC
    assert "metadata.name" in problem.message
