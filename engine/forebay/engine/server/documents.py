"""The JSON documents of chat and completions: whole answers and stream chunks; the list of models. Pure.

A chunk's unchanging parts are rendered once for a stream, since a chunk is made for every token of every client.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from forebay.engine.server.answers import Answer, CompletionLogprobs, Usage, Writer, chat_logprobs
from forebay.engine.server.choices import Delta
from forebay.engine.server.shapes import CallPiece, Outcome
from forebay.engine.text import TextCodec

SSE_DONE = b"data: [DONE]\n\n"
_NO_ENDING = b'"finish_reason":null}]'


@dataclass(frozen=True, slots=True)
class Head:
    """What every document of one answer repeats. `is_chat` chooses between the two endpoints' shapes.

    `logprobs` is how many alternatives to show for each token, None for no log probabilities at all.
    """

    answer_id: str
    created_s: int
    model: str
    is_chat: bool
    logprobs: int | None = None

    def fields(self, kind: str) -> dict[str, Any]:
        """The leading fields of a document."""
        return {"id": self.answer_id, "object": kind, "created": self.created_s, "model": self.model}


def event(document: Mapping[str, Any]) -> bytes:
    """A document as one server-sent event."""
    return b"data: " + orjson.dumps(document) + b"\n\n"


def _ending(outcome: Outcome) -> dict[str, Any]:
    ending: dict[str, Any] = {"finish_reason": outcome.finish_reason, "stop_reason": outcome.stop_reason}
    if outcome.is_incomplete:
        ending["forebay"] = {"incomplete": True}
    return ending


def _message(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    return message


def _merged(pieces: Sequence[CallPiece]) -> list[CallPiece]:
    """One piece for each call: clients take no more than one for a call out of a chunk."""
    merged: list[CallPiece] = []
    for piece in pieces:
        if merged and merged[-1].place == piece.place:
            merged[-1] = replace(merged[-1], arguments=merged[-1].arguments + piece.arguments)
        else:
            merged.append(piece)
    return merged


def _call_delta(piece: CallPiece) -> dict[str, Any]:
    if piece.name:
        function = {"name": piece.name, "arguments": piece.arguments}
        return {"index": piece.place, "id": piece.id, "type": "function", "function": function}
    return {"index": piece.place, "function": {"arguments": piece.arguments}}


class ChatForm:
    """Shapes of /v1/chat/completions and /v1/completions."""

    def __init__(self, head: Head, codec: TextCodec, *, include_usage: bool) -> None:
        self._head = head
        self._codec = codec
        self._include_usage = include_usage

    def whole(self, answers: Sequence[Answer], used: Usage) -> dict[str, Any]:
        """See `Form.whole`."""
        head = self._head
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        kind = "chat.completion" if head.is_chat else "text_completion"
        return {**head.fields(kind), "choices": choices, "usage": used.chat()}

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        head = self._head
        logprobs = None
        if head.is_chat:
            content: dict[str, Any] = {"message": _message(answer)}
            if head.logprobs is not None:
                logprobs = chat_logprobs(self._codec, answer.logprobs)
        else:
            content = {"text": answer.text}
            if head.logprobs is not None:
                logprobs = CompletionLogprobs(self._codec, has_top=head.logprobs > 0).document(answer.logprobs)
        return {"index": index, **content, "logprobs": logprobs, **_ending(answer.outcome)}

    def writer(self) -> Writer:
        """See `Form.writer`."""
        return ChunkWriter(self._head, self._codec, include_usage=self._include_usage)


class ChunkWriter:
    """Makes the chunks of one stream. With `include_usage` every chunk has `usage`, null until the last."""

    def __init__(self, head: Head, codec: TextCodec, *, include_usage: bool) -> None:
        self._fields = head.fields("chat.completion.chunk" if head.is_chat else "text_completion")
        self._is_chat = head.is_chat
        self._include_usage = include_usage
        self._logprobs = _logprobs_of(head, codec)
        self._opened: dict[int, bytes] = {}
        self._start = b"data: " + orjson.dumps(self._fields)[:-1] + b',"choices":[{"index":'
        self._end = (b',"usage":null}' if include_usage else b"}") + b"\n\n"

    def delta(self, delta: Delta) -> bytes:
        """See `Writer.delta`."""
        start = self._opened.get(delta.index)
        if start is None:
            return self._open(delta)
        if delta.outcome is None and not (delta.logprobs or delta.calls or delta.reasoning):
            # The common case: plain text in the middle of an answer.
            return start + orjson.dumps(delta.text) + self._middle if delta.text else b""
        return self._full(delta)

    @property
    def _middle(self) -> bytes:
        return (b"}," if self._is_chat else b",") + b'"logprobs":null,' + _NO_ENDING + self._end

    def _open(self, delta: Delta) -> bytes:
        content = b',"delta":{"content":' if self._is_chat else b',"text":'
        self._opened[delta.index] = self._start + str(delta.index).encode() + content
        first = b""
        if self._is_chat:
            first = self._chunk(delta.index, {"delta": {"role": "assistant", "content": ""}}, None, None)
        return first + self._full(delta)

    def _full(self, delta: Delta) -> bytes:
        logprobs = self._logprobs(delta) if delta.logprobs else None
        if not self._is_chat:
            if not delta.text and delta.outcome is None and logprobs is None:
                return b""
            return self._chunk(delta.index, {"text": delta.text}, logprobs, delta.outcome)
        events = b""
        if delta.reasoning:
            events += self._chunk(delta.index, {"delta": {"reasoning_content": delta.reasoning}}, None, None)
        if delta.text or logprobs is not None:
            events += self._chunk(delta.index, {"delta": {"content": delta.text}}, logprobs, None)
        if delta.calls:
            calls = [_call_delta(piece) for piece in _merged(delta.calls)]
            events += self._chunk(delta.index, {"delta": {"tool_calls": calls}}, None, None)
        if delta.outcome is not None:
            events += self._chunk(delta.index, {"delta": {}}, None, delta.outcome)
        return events

    def end(self, used: Usage, record: dict[str, Any] | None) -> bytes:
        """See `Writer.end`: usage and record when they were asked for, and the end mark."""
        extra: dict[str, Any] = {}
        if self._include_usage:
            extra["usage"] = used.chat()
        if record is not None:
            extra["forebay_record"] = record
        return (event({**self._fields, "choices": [], **extra}) if extra else b"") + SSE_DONE

    def failed(self, error: dict[str, Any]) -> bytes:
        """See `Writer.failed`."""
        return event(error)

    def _chunk(self, index: int, content: Mapping[str, Any], logprobs: Any, outcome: Outcome | None) -> bytes:
        ending = {"finish_reason": None} if outcome is None else _ending(outcome)
        choice = {"index": index, **content, "logprobs": logprobs, **ending}
        document: dict[str, Any] = {**self._fields, "choices": [choice]}
        if self._include_usage:
            document["usage"] = None
        return event(document)


def _logprobs_of(head: Head, codec: TextCodec) -> Callable[[Delta], Any]:
    """Makes the log probabilities of a delta in the endpoint's shape."""
    if head.logprobs is None:
        return lambda _: None
    if head.is_chat:
        return lambda delta: chat_logprobs(codec, delta.logprobs)
    has_top = head.logprobs > 0
    writers: dict[int, CompletionLogprobs] = {}

    def arrays(delta: Delta) -> dict[str, Any]:
        writer = writers.setdefault(delta.index, CompletionLogprobs(codec, has_top=has_top))
        return writer.document(delta.logprobs)

    return arrays


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
