"""The JSON documents of the OpenAI endpoints: whole answers, stream chunks, usage, models. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from forebay.engine.server.choices import Delta, Outcome

SSE_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """What every document of one answer repeats. `is_chat` chooses between the two endpoints' shapes."""

    answer_id: str
    created_s: int
    model: str
    is_chat: bool

    def fields(self, kind: str) -> dict[str, Any]:
        """The leading fields of a document."""
        return {"id": self.answer_id, "object": kind, "created": self.created_s, "model": self.model}


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The usage object; prompts count once, whatever n is."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def _ending(outcome: Outcome | None) -> dict[str, Any]:
    if outcome is None:
        return {"finish_reason": None}
    return {"finish_reason": outcome.finish_reason, "stop_reason": outcome.stop_reason}


def answer(
    head: Head, texts: Sequence[str], outcomes: Sequence[Outcome | None], used: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole answer of a request without streaming."""
    choices: list[dict[str, Any]] = []
    for index, (text, outcome) in enumerate(zip(texts, outcomes, strict=True)):
        content = (
            {"message": {"role": "assistant", "content": text, "refusal": None}} if head.is_chat else {"text": text}
        )
        choices.append({"index": index, **content, "logprobs": None, **_ending(outcome)})
    kind = "chat.completion" if head.is_chat else "text_completion"
    return {**head.fields(kind), "choices": choices, "usage": dict(used)}


def event(document: Mapping[str, Any]) -> bytes:
    """A document as one server-sent event."""
    return b"data: " + orjson.dumps(document) + b"\n\n"


class ChunkWriter:
    """Makes the chunks of one stream. With `include_usage` every chunk has `usage`, null until the last."""

    def __init__(self, head: Head, *, include_usage: bool) -> None:
        self._head = head.fields("chat.completion.chunk" if head.is_chat else "text_completion")
        self._is_chat = head.is_chat
        self._include_usage = include_usage
        self._opened: set[int] = set()

    def delta(self, delta: Delta) -> bytes:
        """The events of one delta, possibly none."""
        events = b""
        is_first = delta.index not in self._opened
        if self._is_chat and is_first:
            events += self._chunk(delta.index, {"delta": {"role": "assistant", "content": ""}}, None)
        self._opened.add(delta.index)
        if delta.text or (delta.outcome is not None and not self._is_chat):
            content = {"delta": {"content": delta.text}} if self._is_chat else {"text": delta.text}
            events += self._chunk(delta.index, content, None if self._is_chat else delta.outcome)
        if self._is_chat and delta.outcome is not None:
            events += self._chunk(delta.index, {"delta": {}}, delta.outcome)
        return events

    def end(self, used: Mapping[str, Any]) -> bytes:
        """The last events: usage when it was asked for, and the end mark."""
        if not self._include_usage:
            return SSE_DONE
        return event({**self._head, "choices": [], "usage": dict(used)}) + SSE_DONE

    def _chunk(self, index: int, content: Mapping[str, Any], outcome: Outcome | None) -> bytes:
        choice = {"index": index, **content, "logprobs": None, **_ending(outcome)}
        document: dict[str, Any] = {**self._head, "choices": [choice]}
        if self._include_usage:
            document["usage"] = None
        return event(document)


def models(names: Sequence[str], created_s: int, max_sequence_tokens: int) -> dict[str, Any]:
    """The list of /v1/models."""
    return {"object": "list", "data": [model(name, created_s, max_sequence_tokens) for name in names]}


def model(name: str, created_s: int, max_sequence_tokens: int) -> dict[str, Any]:
    """One entry of /v1/models."""
    return {
        "id": name,
        "object": "model",
        "created": created_s,
        "owned_by": "forebay",
        "max_model_len": max_sequence_tokens,
    }
