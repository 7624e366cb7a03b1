"""What an answer's text means when a grammar governs it: content, reasoning before it, or tool calls. Pure.

One shape for each structured answer; it stands between the stop matcher and the client. It alone decides whether such
an answer is complete: `finish_reason` is `stop` or `tool_calls` only then. Used by `choices.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from forebay.engine.structured.outcome import structured_end
from forebay.engine.structured.tool_calls import ContentDelta, ToolCallParser, ToolDelta

REASONING_END = "</think>"


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of the tool call at `place` of one answer: `name` opens it, `arguments` is more of its JSON text."""

    place: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an answer ended: OpenAI's `finish_reason`, and what ended it (a stop string or the deadline).

    `is_incomplete` marks a structured answer that is not a whole document.
    """

    finish_reason: str
    stop_reason: str | None
    is_incomplete: bool = False


@dataclass(frozen=True, slots=True)
class Shaped:
    """What new text of an answer turned into."""

    content: str = ""
    reasoning: str = ""
    calls: Sequence[CallPiece] = ()


class Shape(Protocol):
    """Turns the text of one answer into what the client sees."""

    def push(self, text: str) -> Shaped:
        """More text."""

    def finish(self, outcome: Outcome, *, by_token: bool) -> tuple[Shaped, Outcome]:
        """The rest, and how the answer really ended; `by_token`: a stop token of the model ended it."""


class Document:
    """An answer that is one document of a grammar."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._text: list[str] = []

    def push(self, text: str) -> Shaped:
        """See `Shape.push`."""
        self._text.append(text)
        return Shaped(text)

    def finish(self, outcome: Outcome, *, by_token: bool) -> tuple[Shaped, Outcome]:
        """See `Shape.finish`."""
        end = structured_end("".join(self._text), is_json=self._is_json, ended_by_token=by_token)
        return Shaped(), Outcome(end.finish_reason, outcome.stop_reason, end.incomplete)


class Calls:
    """An answer that may call tools; `new_id` makes the ids of calls, `free_text` says that it need not call any."""

    def __init__(self, new_id: Callable[[], str], *, free_text: bool) -> None:
        self._parser = ToolCallParser(new_id, free_text=free_text)

    def push(self, text: str) -> Shaped:
        """See `Shape.push`."""
        return _shaped(self._parser.feed(text)) if text else Shaped()

    def finish(self, outcome: Outcome, *, by_token: bool) -> tuple[Shaped, Outcome]:
        """See `Shape.finish`; a stop string may end free text."""
        shaped = _shaped(self._parser.finish())
        end = self._parser.end(ended_by_token=by_token)
        if outcome.finish_reason == "stop" and end.finish_reason == "length" and not end.incomplete:
            return shaped, outcome
        return shaped, Outcome(end.finish_reason, outcome.stop_reason, end.incomplete)


def _shaped(deltas: Sequence[ContentDelta | ToolDelta]) -> Shaped:
    content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
    calls = [
        CallPiece(delta.index, delta.id, delta.name, delta.arguments)
        for delta in deltas
        if isinstance(delta, ToolDelta)
    ]
    return Shaped(content, calls=calls)


class AfterReasoning:
    """Gives reasoning apart from the answer that follows its end mark."""

    def __init__(self, inner: Shape) -> None:
        self._inner = inner
        self._held = ""
        self._is_open = True

    def push(self, text: str) -> Shaped:
        """See `Shape.push`; a tail that may be the start of the end mark is held back."""
        if not self._is_open:
            return self._inner.push(text)
        text = self._held + text
        at = text.find(REASONING_END)
        if at >= 0:
            self._is_open, self._held = False, ""
            shaped = self._inner.push(text[at + len(REASONING_END) :])
            return Shaped(shaped.content, text[:at], shaped.calls)
        keep = next((n for n in range(len(REASONING_END) - 1, 0, -1) if text.endswith(REASONING_END[:n])), 0)
        self._held = text[len(text) - keep :]
        return Shaped(reasoning=text[: len(text) - keep])

    def finish(self, outcome: Outcome, *, by_token: bool) -> tuple[Shaped, Outcome]:
        """See `Shape.finish`."""
        if not self._is_open:
            return self._inner.finish(outcome, by_token=by_token)
        return Shaped(reasoning=self._held), Outcome("length", outcome.stop_reason, is_incomplete=True)
