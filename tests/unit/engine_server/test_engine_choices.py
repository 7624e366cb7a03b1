"""Tokens to choices, chunks and usage, and the shape of errors."""

import json

import pytest

from forebay.contract.errors import EngineFault, InvalidRequest, Overloaded
from forebay.engine.request import FinishReason
from forebay.engine.server.choices import Choice, Delta, Outcome
from forebay.engine.server.core_client import End, Progress
from forebay.engine.server.documents import ChunkWriter, Head, answer, usage
from forebay.engine.server.errors import Unavailable, problem_of
from text_build import byte_level_codec

CODEC = byte_level_codec()
HEAD = Head("id-1", 5, "m", is_chat=True)


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


def test_chat_chunks_begin_with_the_role_and_end_with_the_reason() -> None:
    writer = ChunkWriter(HEAD, include_usage=True)
    events = writer.delta(Delta(0, "a", None)) + writer.delta(Delta(0, "", Outcome("stop", None)))
    events += writer.end(usage(3, 2, 1))
    chunks = [json.loads(line[6:]) for line in events.splitlines() if line.startswith(b"data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "a"}, {}]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None, None, None]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 5
    assert events.endswith(b"data: [DONE]\n\n")


def test_a_whole_answer_has_one_choice_for_each_text() -> None:
    document = answer(HEAD, ["a", "b"], [Outcome("stop", None), Outcome("length", None)], usage(1, 2, 0))
    assert [item["message"]["content"] for item in document["choices"]] == ["a", "b"]
    assert [item["index"] for item in document["choices"]] == [0, 1]


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
