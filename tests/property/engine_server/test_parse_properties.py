"""Whatever bytes a client sends, parsing gives a valid request or an `InvalidRequest`, and nothing else."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.contract.errors import InvalidRequest
from forebay.engine.server.fields import parse_object
from forebay.engine.server.openai import GenerateRequest, parse_chat, parse_completion
from request_build import LIMITS

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
FIELDS = (
    *("max_tokens", "max_completion_tokens", "n", "temperature", "top_p", "top_k", "seed", "stop", "stream", "model"),
    *("stream_options", "messages", "prompt", "ignore_eos", "logprobs", "tools", "user", "metadata", "logit_bias"),
    *("response_format", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "top_logprobs"),
    *("best_of", "stop_token_ids", "min_tokens", "priority", "speculation", "retention", "forebay_record"),
    *("structured_outputs", "tool_choice", "parallel_tool_calls"),
)
valid = {"model": "m", "messages": [{"role": "user", "content": "x"}], "prompt": "x"}
bodies = st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4).map(lambda fields: {**valid, **fields})


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_refused(body: bytes) -> None:
    outcome = _attempt(lambda: parse_object(body))
    assert isinstance(outcome, dict | InvalidRequest)


@given(bodies, st.booleans())
def test_any_fields_give_a_bounded_request_or_name_the_field(body: dict[str, Any], is_chat: bool) -> None:
    body = {name: value for name, value in body.items() if name != ("prompt" if is_chat else "messages")}
    outcome = _attempt(lambda: (parse_chat if is_chat else parse_completion)(body, LIMITS))
    if isinstance(outcome, InvalidRequest):
        assert outcome.param is not None
        assert outcome.param in outcome.message
    else:
        _check(outcome)


def _attempt(parse: Callable[[], Any]) -> Any:
    """The result or the refusal; any other exception fails the test."""
    try:
        return parse()
    except InvalidRequest as refusal:
        return refusal


def _check(request: GenerateRequest) -> None:
    assert request.model in LIMITS.served_names
    assert 1 <= request.n * len(request.prompts) <= LIMITS.max_n
    assert 0 <= request.sampling.temperature <= 2
    assert 0 < request.sampling.top_p <= 1
    assert 0 <= request.sampling.top_k <= LIMITS.vocabulary
    assert request.seed is None or 0 <= request.seed < 2**64
    assert request.max_tokens is None or 1 <= request.max_tokens <= LIMITS.max_tokens
    assert len(request.stops.texts) <= LIMITS.max_stop
    assert len(request.stops.token_ids) <= LIMITS.max_stop
    assert request.n <= request.best_of <= LIMITS.max_n
    assert -2 <= request.sampling.presence_penalty <= 2
    assert all(token < LIMITS.vocabulary for token, _ in request.sampling.logit_bias)
    assert request.sampling.min_tokens <= LIMITS.max_tokens


@given(st.text(min_size=1, max_size=20))
def test_an_unknown_field_is_refused_by_name(name: str) -> None:
    body = {**valid, name: 1}
    del body["messages"]
    if name in {*FIELDS, "echo", "suffix"}:
        return
    with pytest.raises(InvalidRequest) as refusal:
        parse_completion(json.loads(json.dumps(body)), LIMITS)
    assert refusal.value.param == name
