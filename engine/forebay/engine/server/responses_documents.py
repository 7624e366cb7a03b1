"""The JSON of /v1/responses: the response object, its output items, and the numbered events of a stream. Pure.

An answer is one message item when it has text, then one item for each tool call. Item ids are made from the response's
id, so an event and the final object name the same item.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from forebay.engine.server.answers import Answer, Usage, chat_logprobs, speculation_report
from forebay.engine.server.choices import Delta
from forebay.engine.server.conversation import ToolCall
from forebay.engine.server.shapes import CallPiece, Outcome
from forebay.engine.text import TextCodec

_PER_REQUEST: dict[str, Any] = {
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "user": None,
    "max_output_tokens": None,
}
_NOTHING = Outcome("length", None)


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What every document of one response repeats; `echo` are fields of the request."""

    response_id: str
    created_s: int
    model: str
    echo: Mapping[str, Any]
    has_logprobs: bool


class ResponsesForm:
    """Shapes of one response."""

    def __init__(self, head: ResponseHead, codec: TextCodec) -> None:
        self.head = head
        self._codec = codec

    def whole(self, answers: Sequence[Answer], used: Usage) -> dict[str, Any]:
        """See `Form.whole`; a response has one answer."""
        answer = answers[0]
        items: list[dict[str, Any]] = []
        status = "incomplete" if answer.outcome.finish_reason == "length" else "completed"
        if answer.text or not answer.calls:
            items.append(self.message(0, answer.text, self.logprobs(answer.logprobs), status))
        items += [self.call(len(items) + place, call, status) for place, call in enumerate(answer.calls)]
        return self.response(items, answer.outcome, used)

    def writer(self) -> "EventWriter":
        """See `Form.writer`."""
        return EventWriter(self)

    def response(self, items: Sequence[Any], outcome: Outcome | None, used: Usage | None) -> dict[str, Any]:
        """The response object; in progress without an outcome."""
        is_cut = outcome is not None and outcome.finish_reason == "length"
        reason = "max_output_tokens" if outcome is not None and outcome.stop_reason is None else "deadline"
        document: dict[str, Any] = {
            "id": self.head.response_id,
            "object": "response",
            "created_at": self.head.created_s,
            "status": "in_progress" if outcome is None else "incomplete" if is_cut else "completed",
            "model": self.head.model,
            "output": list(items),
            "error": None,
            "incomplete_details": {"reason": reason} if is_cut else None,
            **_PER_REQUEST,
            **self.head.echo,
            "background": False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "truncation": "disabled",
            "usage": None if used is None else _usage(used),
        }
        if outcome is not None and outcome.is_incomplete:
            document["forebay"] = {"incomplete": True}
        return document

    def message(self, place: int, text: str, logprobs: list[Any], status: str) -> dict[str, Any]:
        """A message item."""
        part = self.part(text, logprobs)
        return {
            "id": f"msg_{self.head.response_id}_{place}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [part] if status != "in_progress" else [],
        }

    def part(self, text: str, logprobs: list[Any]) -> dict[str, Any]:
        """The only content part of a message."""
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def call(self, place: int, call: ToolCall, status: str) -> dict[str, Any]:
        """A function call item."""
        return {
            "id": f"fc_{self.head.response_id}_{place}",
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
            "status": status,
        }

    def logprobs(self, entries: Sequence[Any]) -> list[Any]:
        """Log probabilities of tokens, empty unless they were asked for."""
        if not self.head.has_logprobs:
            return []
        content: list[Any] = chat_logprobs(self._codec, entries)["content"]
        return content


def _usage(used: Usage) -> dict[str, Any]:
    document: dict[str, Any] = {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": used.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": used.prompt_tokens + used.completion_tokens,
    }
    if used.speculation is not None:
        document["forebay"] = {"speculation": speculation_report(used.speculation)}
    return document


class EventWriter:
    """Makes the events of one stream: items open, grow and close in order; the last event has the whole response."""

    def __init__(self, form: ResponsesForm) -> None:
        self._form = form
        self._number = 0
        self._done: list[dict[str, Any]] = []
        self._text: list[str] = []
        self._logprobs: list[Any] = []
        self._call: ToolCall | None = None
        self._open = ""
        self._outcome: Outcome = _NOTHING

    def delta(self, delta: Delta) -> bytes:
        """See `Writer.delta`."""
        events = b"" if self._number else self._begin()
        if delta.text or (delta.logprobs and self._form.head.has_logprobs):
            events += self._add_text(delta)
        for piece in delta.calls:
            events += self._add_call(piece)
        if delta.outcome is not None:
            self._outcome = delta.outcome
            if not self._done and not self._open:
                events += self._open_message()
            events += self._close("incomplete" if delta.outcome.finish_reason == "length" else "completed")
        return events

    def end(self, used: Usage, record: dict[str, Any] | None) -> bytes:
        """See `Writer.end`."""
        response = self._form.response(self._done, self._outcome, used)
        if record is not None:
            response["forebay_record"] = record
        kind = "response.incomplete" if self._outcome.finish_reason == "length" else "response.completed"
        return self._event(kind, {"response": response})

    def failed(self, error: dict[str, Any]) -> bytes:
        """See `Writer.failed`."""
        inner = error["error"]
        return self._event("error", {name: inner[name] for name in ("code", "message", "param")})

    def _event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        document = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(document) + b"\n\n"

    def _begin(self) -> bytes:
        response = self._form.response((), None, None)
        return self._event("response.created", {"response": response}) + self._event(
            "response.in_progress", {"response": response}
        )

    @property
    def _place(self) -> int:
        return len(self._done)

    def _part_fields(self) -> dict[str, Any]:
        item = f"msg_{self._form.head.response_id}_{self._place}"
        return {"item_id": item, "output_index": self._place, "content_index": 0}

    def _open_message(self) -> bytes:
        self._open, self._text, self._logprobs = "message", [], []
        item = self._form.message(self._place, "", [], "in_progress")
        added = self._event("response.output_item.added", {"output_index": self._place, "item": item})
        part = {**self._part_fields(), "part": self._form.part("", [])}
        return added + self._event("response.content_part.added", part)

    def _add_text(self, delta: Delta) -> bytes:
        events = b""
        if self._open != "message":
            events = self._close("completed") + self._open_message()
        logprobs = self._form.logprobs(delta.logprobs)
        self._text.append(delta.text)
        self._logprobs += logprobs
        fields = {**self._part_fields(), "delta": delta.text, "logprobs": logprobs}
        return events + self._event("response.output_text.delta", fields)

    def _add_call(self, piece: CallPiece) -> bytes:
        events = b""
        if piece.name:
            events = self._close("completed")
            self._open, self._call = "call", ToolCall(piece.id, piece.name, "")
            item = self._form.call(self._place, self._call, "in_progress")
            events += self._event("response.output_item.added", {"output_index": self._place, "item": item})
        if piece.arguments and self._call is not None:
            self._call = ToolCall(self._call.id, self._call.name, self._call.arguments + piece.arguments)
            item_id = f"fc_{self._form.head.response_id}_{self._place}"
            fields = {"item_id": item_id, "output_index": self._place, "delta": piece.arguments}
            events += self._event("response.function_call_arguments.delta", fields)
        return events

    def _close(self, status: str) -> bytes:
        """The events that end the open item, if one is open."""
        place = self._place
        if self._open == "message":
            text = "".join(self._text)
            fields = self._part_fields()
            events = self._event("response.output_text.done", {**fields, "text": text, "logprobs": self._logprobs})
            part = self._form.part(text, self._logprobs)
            events += self._event("response.content_part.done", {**fields, "part": part})
            item = self._form.message(place, text, self._logprobs, status)
        elif self._open == "call" and self._call is not None:
            item = self._form.call(place, self._call, status)
            fields = {"item_id": item["id"], "output_index": place, "name": self._call.name}
            fields["arguments"] = self._call.arguments
            events = self._event("response.function_call_arguments.done", fields)
        else:
            return b""
        self._open = ""
        self._done.append(item)
        return events + self._event("response.output_item.done", {"output_index": place, "item": item})
