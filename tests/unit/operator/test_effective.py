"""The effective configuration: who chose a value, and what a release does not accept."""

from typing import Any

import pytest

import operator_build as build
from forebay.api.modeldeployment import ModelDeployment
from forebay.api.shape import parse
from forebay.operator.conditions import Reason
from forebay.operator.effective import Effective, resolve
from forebay.operator.references import Problem, References, find_references


def _references(release: dict[str, Any] | None = None, **spec: Any) -> References:
    document = build.deployment(**spec)
    snapshot = build.snapshot(document, **({} if release is None else {"release": release}))
    found = find_references(parse(ModelDeployment, document), snapshot)
    assert isinstance(found, References)
    return found


def _effective(**spec: Any) -> Effective:
    found = resolve(_references(**spec))
    assert isinstance(found, Effective)
    return found


def _problem(release: dict[str, Any] | None = None, **spec: Any) -> Problem:
    found = resolve(_references(release, **spec))
    assert isinstance(found, Problem)
    return found


def test_each_value_says_who_chose_it() -> None:
    effective = _effective(scheduling={"maxRunning": 4}, engine={"config": {"prefix_reuse": False}})
    assert {(item.key, item.value, item.source) for item in effective.values if item.key != "served_names"} == {
        ("dtype", "bf16", "operator"),
        ("kv_cache_bytes", 268435456, "release"),
        ("max_running", 4, "user"),
        ("prefix_reuse", False, "user"),
    }


def test_values_are_sorted_and_the_digest_depends_on_them_alone() -> None:
    one = _effective(engine={"config": {"threshold": 0.5, "log_level": "info"}})
    other = _effective(engine={"config": {"log_level": "info", "threshold": 0.5}})
    assert [item.key for item in one.values] == sorted(item.key for item in one.values)
    assert one.digest == other.digest
    assert one.digest != _effective(engine={"config": {"log_level": "debug"}}).digest


def test_the_deployment_and_the_model_are_served_names() -> None:
    assert _effective().get("served_names", None) == ["chat", "tiny"]


def test_a_release_that_does_not_know_an_operator_key_is_not_given_it() -> None:
    release = build.release(configSchema=[{"key": "max_running", "type": "integer"}], defaults=[])
    found = resolve(_references(release))
    assert isinstance(found, Effective)
    assert found.values == ()


def test_typed_fields_reach_their_keys() -> None:
    effective = _effective(
        cache={"pageTokens": 32, "device": {"bytes": 1000}},
        scheduling={"maxBatchTokens": 64, "maxWaiting": 0},
        limits={"defaultMaxTokens": 5, "maxTokens": 6, "maxSeconds": 7, "maxPromptTokens": 8},
        structuredOutput={"maxTokens": 9, "maxSeconds": 10, "maxWhitespaceRun": 0},
    )
    user = {item.key: item.value for item in effective.values if item.source == "user"}
    assert user == {
        "page_tokens": 32,
        "kv_cache_bytes": 1000,
        "max_batch_tokens": 64,
        "max_waiting": 0,
        "default_max_tokens": 5,
        "max_tokens": 6,
        "max_seconds": 7,
        "max_prompt_tokens": 8,
        "structured_max_tokens": 9,
        "structured_max_seconds": 10,
        "structured_max_whitespace": 0,
    }


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ({"determinism": "BatchInvariant"}, {"determinism": "batch_invariant"}),
        ({"determinism": "Fast"}, {"determinism": "default"}),
        ({"scheduling": {"policy": "GuaranteedNoEvict"}}, {"admission": "guaranteed_no_evict"}),
        ({"speculative": {"method": "NGram", "maxTokens": 3}}, {"speculation": "ngram", "draft_tokens": 3}),
        ({"speculative": {"method": "None"}}, {"speculation": "off"}),
    ],
)
def test_typed_choices_reach_their_keys_in_the_words_of_the_engine(
    fields: dict[str, Any], values: dict[str, Any]
) -> None:
    effective = _effective(**fields)
    assert {item.key: item.value for item in effective.values if item.source == "user"} == values


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    problem = _problem(engine={"config": {"max_runing": 4}})
    assert problem.reason is Reason.UNKNOWN_ENGINE_CONFIG
    assert problem.message.startswith("spec.engine.config.max_runing:")
    assert "did you mean max_running?" in problem.message


def test_an_unknown_key_without_a_near_one_lists_the_schema() -> None:
    assert "log_level" in _problem(engine={"config": {"zzz": 4}}).message


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("max_running", "4", "it must be of type integer"),
        ("max_running", 4.5, "it must be of type integer"),
        ("max_running", True, "it must be of type integer"),
        ("max_running", 0, "the smallest value is 1"),
        ("page_tokens", 512, "the largest value is 256"),
        ("prefix_reuse", 1, "it must be of type boolean"),
        ("log_level", "loud", "use one of: debug, info"),
        ("threshold", 2, "the largest value is 1"),
        ("max_running", None, "it must be of type integer"),
    ],
)
def test_a_value_outside_the_schema_is_refused_with_the_fix(key: str, value: Any, fix: str) -> None:
    problem = _problem(engine={"config": {key: value}})
    assert problem.reason is Reason.INVALID_ENGINE_CONFIG
    assert problem.message.startswith(f"spec.engine.config.{key}:")
    assert fix in problem.message


def test_a_number_key_takes_an_integer() -> None:
    assert _effective(engine={"config": {"threshold": 1}}).get("threshold", None) == 1


def test_a_key_that_a_typed_field_sets_cannot_be_set_twice() -> None:
    problem = _problem(scheduling={"maxRunning": 4}, engine={"config": {"max_running": 5}})
    assert problem.reason is Reason.INVALID_ENGINE_CONFIG
    assert "spec.scheduling.maxRunning" in problem.message


@pytest.mark.parametrize("key", ["model", "port", "served_names", "dtype"])
def test_a_key_of_the_operator_cannot_be_set(key: str) -> None:
    assert "is set by the operator" in _problem(engine={"config": {key: "x"}}).message


def test_a_typed_field_that_the_release_does_not_know_names_the_field() -> None:
    release = build.release(configSchema=[{"key": "log_level", "type": "string"}], defaults=[])
    problem = _problem(release, scheduling={"maxRunning": 4})
    assert problem.reason is Reason.UNKNOWN_ENGINE_CONFIG
    assert problem.message.startswith("spec.scheduling.maxRunning:")
