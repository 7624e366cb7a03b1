"""Tokens to answer text, one `Choice` for each answer of a request. Pure.

A choice detokenizes, applies stop strings, counts, keeps log probabilities, and knows how it ended; a shape gives the
text of structured answers its meaning. Used by `exchange.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.contract.errors import EngineFault, ForebayError
from forebay.engine.messages import Logprobs, SpeculationCounts
from forebay.engine.request import FinishReason
from forebay.engine.server.core_client import End, Progress
from forebay.engine.server.errors import Unavailable
from forebay.engine.server.shapes import CallPiece, Outcome, Shape, Shaped
from forebay.engine.text import Detokenizer, StopMatcher

STOP_REASON_DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of one answer; with `outcome` set it is the last. `logprobs` has (token id, log probabilities)."""

    index: int
    text: str
    outcome: Outcome | None
    logprobs: Sequence[tuple[int, Logprobs]] = ()
    calls: Sequence[CallPiece] = ()
    reasoning: str = ""


class Choice:
    """One answer being made.

    `tokens` counts what was generated, `cached_tokens` what the prompt reused; `ids` are all tokens that came.
    `logprob_sum` is over the tokens that came with a log probability. `ended` is set once the core has let go.
    """

    __slots__ = (
        "_detokenizer",
        "_shape",
        "_stops",
        "cached_tokens",
        "ended",
        "ids",
        "index",
        "logprob_sum",
        "outcome",
        "speculation",
        "tokens",
    )

    def __init__(self, index: int, detokenizer: Detokenizer, stops: Sequence[str], shape: Shape | None = None) -> None:
        self.index = index
        self.tokens = 0
        self.cached_tokens = 0
        self.ids: list[int] = []
        self.logprob_sum = 0.0
        self.outcome: Outcome | None = None
        self.ended = False
        self.speculation: SpeculationCounts | None = None
        self._shape = shape
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops)

    @property
    def mean_logprob(self) -> float:
        """Mean log probability of the answer's tokens, for ranking."""
        return self.logprob_sum / len(self.ids) if self.ids else float("-inf")

    def take(self, progress: Progress) -> Delta:
        """The delta of this progress; raises when the sequence ended without an answer worth giving.

        After a stop string only the final counts are taken, and the delta is empty.
        """
        end = progress.end
        if self.outcome is not None:
            self._note_end(end)
            return Delta(self.index, "", None)
        text = self._text(progress.tokens)
        if self._stops.hit is None and end is not None:
            text += self._stops.push(self._detokenizer.finish())
        if self._stops.hit is not None:
            self.outcome = Outcome("stop", self._stops.hit)
        elif end is not None:
            text += self._stops.finish()
            self.outcome = _outcome(end)
            self.tokens = max(self.tokens, end.generated_tokens)
        self._note_end(end)
        logprobs = progress.logprobs
        if not logprobs and self._shape is None:
            return Delta(self.index, text, self.outcome)
        self.logprob_sum += sum(entry[0] for entry in logprobs)
        shaped = self._shaped(text, end)
        shown = list(zip(progress.tokens, logprobs, strict=False)) if logprobs else ()
        return Delta(self.index, shaped.content, self.outcome, shown, shaped.calls, shaped.reasoning)

    def _text(self, tokens: Sequence[int]) -> str:
        """Text of these tokens up to a stop string; only tokens up to it count, however many came at once."""
        if not self._stops.is_armed:
            self.tokens += len(tokens)
            self.ids += tokens
            return self._detokenizer.push(tokens)
        text = ""
        for token in tokens:
            self.tokens += 1
            self.ids.append(token)
            text += self._stops.push(self._detokenizer.push((token,)))
            if self._stops.hit is not None:
                break
        return text

    def _shaped(self, text: str, end: End | None) -> Shaped:
        """The text through the shape, which also has the last word on how the answer ended."""
        if self._shape is None:
            return Shaped(text)
        shaped = self._shape.push(text)
        if self.outcome is None:
            return shaped
        by_token = self._stops.hit is None and end is not None and end.reason is FinishReason.STOP
        rest, self.outcome = self._shape.finish(self.outcome, by_token=by_token)
        return Shaped(shaped.content + rest.content, shaped.reasoning + rest.reasoning, (*shaped.calls, *rest.calls))

    def _note_end(self, end: End | None) -> None:
        if end is not None:
            self.ended = True
            self.cached_tokens = end.cached_tokens
            self.speculation = end.speculation


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
