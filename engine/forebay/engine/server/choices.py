"""Tokens to answer text, one `Choice` for each answer of a request. Pure.

A choice detokenizes, applies stop strings, counts, and knows how it ended. `Outcome` is what the client sees in
`finish_reason` and `stop_reason`. Used by `generate.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.contract.errors import EngineFault, ForebayError
from forebay.engine.request import FinishReason
from forebay.engine.server.core_client import End, Progress
from forebay.engine.server.errors import Unavailable
from forebay.engine.text import Detokenizer, StopMatcher

STOP_REASON_DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an answer ended: OpenAI's `finish_reason`, and what ended it (a stop string, or the deadline)."""

    finish_reason: str
    stop_reason: str | None


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of one answer; with `outcome` set it is the last."""

    index: int
    text: str
    outcome: Outcome | None


class Choice:
    """One answer being made. `tokens` counts what was generated, `cached_tokens` what the prompt reused."""

    def __init__(self, index: int, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self.index = index
        self.tokens = 0
        self.cached_tokens = 0
        self.outcome: Outcome | None = None
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops)

    def take(self, progress: Progress) -> Delta:
        """The delta of this progress; raises when the sequence ended without an answer worth giving."""
        self.tokens += len(progress.tokens)
        text = self._stops.push(self._detokenizer.push(progress.tokens))
        if self._stops.hit is None and progress.end is not None:
            text += self._stops.push(self._detokenizer.finish())
        if self._stops.hit is not None:
            self.outcome = Outcome("stop", self._stops.hit)
        elif progress.end is not None:
            text += self._stops.finish()
            self.outcome = _outcome(progress.end)
        if progress.end is not None:
            self.tokens = max(self.tokens, progress.end.generated_tokens)
            self.cached_tokens = progress.end.cached_tokens
        return Delta(self.index, text, self.outcome)


def _outcome(end: End) -> Outcome:
    match end.reason:
        case FinishReason.STOP:
            return Outcome("stop", None)
        case FinishReason.LENGTH:
            return Outcome("length", None)
        case FinishReason.DEADLINE if end.generated_tokens > 0:
            return Outcome("length", STOP_REASON_DEADLINE)
        case _:
            raise ended_without_answer(end)


def ended_without_answer(end: End) -> ForebayError:
    """The error for a sequence that ended for a reason that is not an answer."""
    match end.reason:
        case FinishReason.DEADLINE:
            return Unavailable("the request ran out of time before its first token", code="deadline_exceeded")
        case FinishReason.DRAIN | FinishReason.ABORT:
            return Unavailable("the engine is shutting down", code="draining")
        case _:
            return EngineFault(f"the engine failed: {end.message or end.reason.value}")
