"""Tokens to choices, chunks and usage, and the shape of errors."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.contract.errors import EngineFault, InvalidRequest, Overloaded
from forebay.engine.request import FinishReason
from forebay.engine.server.answers import Answer, Usage, speculation_report, summed
from forebay.engine.server.choices import Choice, Delta
from forebay.engine.server.core_client import End, Progress
from forebay.engine.server.documents import ChatForm, ChunkWriter, Head
from forebay.engine.server.errors import Unavailable, problem_of
from forebay.engine.server.shapes import Outcome
from text_build import byte_level_codec

CODEC = byte_level_codec()
HEAD = Head("id-1", 5, "m", is_chat=True)
USED = Usage(3, 2, 1)


def choice(stops: tuple[str, ...] = ()) -> Choice:
    return Choice(0, CODEC.detokenizer(), stops)


def end(reason: FinishReason, generated: int = 3) -> End:
    return End(reason, generated, 2, "")


def test_a_stop_string_cut_by_tokens_ends_the_choice_before_it() -> None:
    made = choice(("stop",))
    assert made.take(Progress(0, CODEC.encode_text("go st"), None)) == Delta(0, "go ", None)
    assert made.take(Progress(0, CODEC.encode_text("op now"), None)) == Delta(0, "", Outcome("stop", "stop"))


def test_text_held_back_for_a_stop_string_comes_with_the_end() -> None:
    made = choice(("stop",))
    made.take(Progress(0, CODEC.encode_text("go st"), None))
    assert made.take(Progress(0, (), end(FinishReason.LENGTH))) == Delta(0, "st", Outcome("length", None))
    assert made.cached_tokens == 2


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (FinishReason.STOP, Outcome("stop", None)),
        (FinishReason.LENGTH, Outcome("length", None)),
        (FinishReason.DEADLINE, Outcome("length", "deadline")),
    ],
)
def test_ends_that_are_answers_have_an_outcome(reason: FinishReason, outcome: Outcome) -> None:
    assert choice().take(Progress(0, (), end(reason))).outcome == outcome


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        (end(FinishReason.DEADLINE, 0), Unavailable),
        (end(FinishReason.DRAIN), Unavailable),
        (end(FinishReason.ERROR), EngineFault),
    ],
)
def test_ends_that_are_no_answers_are_errors(ending: End, error: type[Exception]) -> None:
    with pytest.raises(error):
        choice().take(Progress(0, (), ending))


def test_after_a_stop_string_only_the_counts_of_the_core_are_taken() -> None:
    made = choice(("stop",))
    made.take(Progress(0, CODEC.encode_text("a stop"), None))
    tokens = made.tokens
    late = made.take(
        Progress(0, CODEC.encode_text("more"), replace(end(FinishReason.ABORT), speculation=(4, 2, 3, (1, 2))))
    )
    assert late == Delta(0, "", None)
    assert (made.ended, made.tokens, made.cached_tokens, made.speculation) == (True, tokens, 2, (4, 2, 3, (1, 2)))


def test_log_probabilities_come_with_their_tokens() -> None:
    ids = CODEC.encode_text("ab")
    entries = [(-0.5, ((ids[0], -0.5),)), (-1.5, ((ids[0], -0.1),))]
    made = choice()
    delta = made.take(Progress(0, ids, end(FinishReason.LENGTH, 2), entries))
    assert list(delta.logprobs) == list(zip(ids, entries, strict=True))
    assert made.mean_logprob == -1.0
    whole = ChatForm(replace(HEAD, logprobs=1), CODEC, include_usage=False).whole(
        [Answer("ab", Outcome("length", None), list(delta.logprobs))], USED
    )
    content = whole["choices"][0]["logprobs"]["content"]
    assert [(entry["token"], entry["logprob"], entry["bytes"]) for entry in content] == [
        ("a", -0.5, [97]),
        ("b", -1.5, [98]),
    ]
    assert content[1]["top_logprobs"] == [{"token": "a", "logprob": -0.1, "bytes": [97]}]
    plain = replace(HEAD, is_chat=False, logprobs=1)
    arrays = ChatForm(plain, CODEC, include_usage=False).whole(
        [Answer("ab", Outcome("length", None), list(delta.logprobs))], USED
    )["choices"][0]["logprobs"]
    assert arrays == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -1.5],
        "top_logprobs": [{"a": -0.5}, {"a": -0.1}],
        "text_offset": [0, 1],
    }


def chunks_of(events: bytes) -> list[dict[str, Any]]:
    """The documents of a stream of events."""
    return [json.loads(line[6:]) for line in events.splitlines() if line.startswith(b"data: {")]


def test_chat_chunks_begin_with_the_role_and_end_with_the_reason() -> None:
    writer = ChunkWriter(HEAD, CODEC, include_usage=True)
    events = b"".join(
        map(writer.delta, (Delta(0, "a", None), Delta(0, "é\n", None), Delta(0, "", Outcome("stop", None))))
    )
    events += writer.end(USED, None)
    chunks = chunks_of(events)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "é\n"}, {}]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 4
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 5
    assert events.endswith(b"data: [DONE]\n\n")


@given(st.lists(st.text(max_size=8), min_size=2, max_size=5), st.booleans(), st.booleans())
def test_a_chunk_from_rendered_parts_has_the_same_fields_as_one_from_a_document(
    texts: list[str], is_chat: bool, include_usage: bool
) -> None:
    writer = ChunkWriter(replace(HEAD, is_chat=is_chat), CODEC, include_usage=include_usage)
    events = b"".join(writer.delta(Delta(2, text, None)) for text in ("x", *texts))
    chunks = chunks_of(events)[1 if is_chat else 0 :]
    shapes = [{**chunk, "choices": [{**chunk["choices"][0], "delta": 0, "text": 0}]} for chunk in chunks]
    assert all(shape == shapes[0] for shape in shapes)
    given_out = [
        (chunk["choices"][0]["delta"]["content"] if is_chat else chunk["choices"][0]["text"]) for chunk in chunks
    ]
    assert given_out == ["x", *(text for text in texts if text)]


def test_a_whole_answer_has_one_choice_for_each_text() -> None:
    answers = [Answer("a", Outcome("stop", None)), Answer("b", Outcome("length", None, is_incomplete=True))]
    document = ChatForm(HEAD, CODEC, include_usage=False).whole(answers, USED)
    assert [item["message"]["content"] for item in document["choices"]] == ["a", "b"]
    assert [item["index"] for item in document["choices"]] == [0, 1]
    assert [item.get("forebay") for item in document["choices"]] == [None, {"incomplete": True}]


def test_speculation_of_answers_adds_up_and_its_mean_counts_the_bonus_token() -> None:
    both = summed([(8, 2, 4, (3, 0, 1)), (4, 3, 2, (0, 1, 1))])
    assert both == (12, 5, 6, (3, 1, 2))
    assert speculation_report(both)["mean_acceptance_length"] == pytest.approx(1 + 5 / 6, abs=1e-4)
    assert Usage(1, 2, 0, both).chat()["forebay"]["speculation"]["histogram"] == [3, 1, 2]


@pytest.mark.parametrize(
    ("error", "status", "code", "kind"),
    [
        (InvalidRequest("x", param="n"), 400, "invalid_request", "invalid_request_error"),
        (InvalidRequest("x", status=404), 404, "model_not_found", "not_found_error"),
        (InvalidRequest("x", status=413), 413, "request_too_large", "invalid_request_error"),
        (Overloaded("x", after_s=1.5), 429, "overloaded", "rate_limit_error"),
        (Unavailable("x", code="draining"), 503, "draining", "server_error"),
        (EngineFault("x"), 503, "engine_fault", "server_error"),
        (KeyError("secret detail"), 500, "internal_error", "server_error"),
    ],
)
def test_every_error_has_the_openai_shape(error: Exception, status: int, code: str, kind: str) -> None:
    problem = problem_of(error)
    document = problem.document()["error"]
    assert isinstance(document, dict)
    assert (problem.status, document["code"], document["type"]) == (status, code, kind)
    assert "secret" not in str(document["message"])
    response = problem.response()
    assert ("Retry-After" in response.headers) == (status == 429 or code == "draining")
