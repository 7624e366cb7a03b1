"""Reads tool calls out of an answer's text as it comes, in whatever pieces. Pure; one parser for each answer.

A call is `<tool_call>{"name": ..., "arguments": ...}</tool_call>`; the grammar guarantees that form, and text that
breaks it is given as content, never lost. Content comes without the blanks around calls. Arguments stream as the model
writes them: joined, they are its JSON text. Called by the server, which turns the deltas into OpenAI's shapes.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from forebay.engine.structured.lower_tools import CALL_CLOSE, CALL_OPEN
from forebay.engine.structured.outcome import StructuredEnd

_HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\S)')
_TAIL: Final = re.compile(rf"\s*\}}\s*{re.escape(CALL_CLOSE)}")
_MAX_HEAD: Final = 2048
_MAX_TAIL: Final = 512


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text of the answer outside of calls."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """A piece of call number `index`. `id` and `name` come with its first piece and are else empty."""

    index: int
    id: str
    name: str
    arguments: str


Delta = ContentDelta | ToolDelta


class ToolCallParser:
    """Takes text, gives deltas. `new_id` makes the ids of calls; `free_text` says that an answer need not be a call."""

    def __init__(self, new_id: Callable[[], str], *, free_text: bool = True) -> None:
        self._new_id = new_id
        self._free_text = free_text
        self._held = ""
        self._step: Callable[[list[Delta]], bool] = self._content
        self._value = _ValueEnd()
        self.calls = 0

    def feed(self, text: str) -> list[Delta]:
        """Deltas that this text completes."""
        self._held += text
        deltas: list[Delta] = []
        while self._step(deltas):
            pass
        return deltas

    def finish(self) -> list[Delta]:
        """What was held back at the end of the answer."""
        held, self._held = self._held, ""
        if self._step == self._content:
            return [ContentDelta(held)] if held and (held.strip() or not self.calls) else []
        if self._step == self._head:
            return [ContentDelta(CALL_OPEN + held)]
        return []

    @property
    def is_open(self) -> bool:
        """Whether the text so far ends inside a call."""
        return self._step != self._content

    def end(self, *, ended_by_token: bool) -> StructuredEnd:
        """How the answer ended; `ended_by_token` as for `structured_end`. Called after `finish`."""
        if self.is_open or not (self.calls or ended_by_token or self._free_text):
            return StructuredEnd("length", incomplete=True)
        if self.calls:
            return StructuredEnd("tool_calls", incomplete=False)
        return StructuredEnd("stop" if ended_by_token else "length", incomplete=False)

    def _content(self, deltas: list[Delta]) -> bool:
        before, mark, after = self._held.partition(CALL_OPEN)
        if mark:
            if before.strip():
                deltas.append(ContentDelta(before.rstrip()))
            self._held, self._step = after, self._head
            return True
        keep = _tail_length(self._held)
        ready = self._held[: len(self._held) - keep]
        if ready:
            deltas.append(ContentDelta(ready))
            self._held = self._held[len(ready) :]
        return False

    def _head(self, deltas: list[Delta]) -> bool:
        found = _HEAD.match(self._held)
        if found is None:
            if len(self._held) > _MAX_HEAD:
                self._give_up(deltas, CALL_OPEN)
            return False
        deltas.append(ToolDelta(self.calls, self._new_id(), str(json.loads(found[1])), ""))
        self.calls += 1
        self._held, self._step, self._value = self._held[found.end() :], self._arguments, _ValueEnd()
        return True

    def _arguments(self, deltas: list[Delta]) -> bool:
        length = self._value.feed(self._held)
        piece, self._held = self._held[:length], self._held[length:]
        if piece:
            deltas.append(ToolDelta(self.calls - 1, "", "", piece))
        if self._value.is_ended:
            self._step = self._tail
        return self._value.is_ended

    def _tail(self, deltas: list[Delta]) -> bool:
        found = _TAIL.match(self._held)
        if found is None:
            if len(self._held) > _MAX_TAIL:
                self._give_up(deltas, "")
            return False
        self._held, self._step = self._held[found.end() :], self._content
        return True

    def _give_up(self, deltas: list[Delta], lost: str) -> None:
        deltas.append(ContentDelta(lost + self._held))
        self._held, self._step = "", self._content


def _tail_length(text: str) -> int:
    """Length of the end of `text` that may yet belong to a call: the beginning of its mark, and blanks before it."""
    keep = next((n for n in range(min(len(CALL_OPEN) - 1, len(text)), 0, -1) if CALL_OPEN.startswith(text[-n:])), 0)
    solid = text[: len(text) - keep].rstrip()
    return len(text) - len(solid)


class _ValueEnd:
    """Finds where one JSON object ends, fed in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.is_ended = False

    def feed(self, text: str) -> int:
        """How many characters of `text` belong to the value."""
        for place, char in enumerate(text):
            self._take(char)
            if self._depth == 0:
                self.is_ended = True
                return place + 1
        return len(text)

    def _take(self, char: str) -> None:
        if self._in_string:
            self._in_string = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
