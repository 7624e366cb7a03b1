"""What a finished request has to show, before any endpoint gives it its shape: answers, usage, speculation. Pure.

`documents.py` and `responses_documents.py` turn these into JSON; `exchange.py` makes them from choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from forebay.engine.messages import Logprobs, SpeculationCounts
from forebay.engine.server.choices import Delta
from forebay.engine.server.conversation import ToolCall
from forebay.engine.server.shapes import Outcome
from forebay.engine.text import TextCodec


@dataclass(slots=True)
class Answer:
    """One whole answer. `logprobs` has (token id, log probabilities) when they were asked for."""

    text: str
    outcome: Outcome
    logprobs: list[tuple[int, Logprobs]] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    reasoning: str = ""

    def take(self, delta: Delta) -> None:
        """Add everything of a delta but its text, which the caller joins once."""
        self.logprobs += delta.logprobs
        self.reasoning += delta.reasoning
        for piece in delta.calls:
            if piece.name:
                self.calls.append(ToolCall(piece.id, piece.name, ""))
            call = self.calls[piece.place]
            self.calls[piece.place] = ToolCall(call.id, call.name, call.arguments + piece.arguments)
        if delta.outcome is not None:
            self.outcome = delta.outcome


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a whole request; prompts count once, whatever n is. `speculation` is set when any was asked for."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    speculation: SpeculationCounts | None = None

    def chat(self) -> dict[str, Any]:
        """The usage object of chat and completions."""
        document: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if self.speculation is not None:
            document["forebay"] = {"speculation": speculation_report(self.speculation)}
        return document


def speculation_report(counts: SpeculationCounts) -> dict[str, Any]:
    """Speculation of a request: `histogram[i]` steps accepted i drafts; the mean counts the step's own token."""
    drafted, accepted, steps, histogram = counts
    return {
        "drafted": drafted,
        "accepted": accepted,
        "steps": steps,
        "histogram": list(histogram),
        "mean_acceptance_length": round(1 + accepted / steps, 4) if steps else None,
    }


def summed(counts: Sequence[SpeculationCounts]) -> SpeculationCounts:
    """Speculation of several answers together."""
    length = max((len(histogram) for *_, histogram in counts), default=0)
    histogram = [0] * length
    for *_, one in counts:
        for place, steps in enumerate(one):
            histogram[place] += steps
    drafted, accepted, steps = (sum(column) for column in list(zip(*(count[:3] for count in counts), strict=True)))
    return drafted, accepted, steps, tuple(histogram)


class Writer(Protocol):
    """Makes the events of one stream."""

    def delta(self, delta: Delta) -> bytes:
        """The events of one delta, possibly none."""

    def end(self, used: Usage, record: dict[str, Any] | None) -> bytes:
        """The last events."""

    def failed(self, error: dict[str, Any]) -> bytes:
        """The event that says why a stream ends early; `error` is OpenAI's error document."""


class Form(Protocol):
    """The shape of one endpoint's answers to one request."""

    def whole(self, answers: Sequence[Answer], used: Usage) -> dict[str, Any]:
        """The document of an answer without streaming."""

    def writer(self) -> Writer:
        """The events of a stream."""


def chat_logprobs(codec: TextCodec, entries: Sequence[tuple[int, Logprobs]]) -> dict[str, Any]:
    """Log probabilities as chat has them: each token with its bytes and its alternatives."""
    return {
        "content": [
            {**_token(codec, token, logprob), "top_logprobs": [_token(codec, *alternative) for alternative in top]}
            for token, (logprob, top) in entries
        ],
        "refusal": None,
    }


def _token(codec: TextCodec, token: int, logprob: float) -> dict[str, Any]:
    text, raw = codec.token_text(token)
    return {"token": text, "logprob": logprob, "bytes": list(raw)}


class CompletionLogprobs:
    """Log probabilities as completions have them: parallel arrays, with each token's place in the text."""

    def __init__(self, codec: TextCodec, *, has_top: bool) -> None:
        self._codec = codec
        self._has_top = has_top
        self._offset = 0

    def document(self, entries: Sequence[tuple[int, Logprobs]]) -> dict[str, Any]:
        """The arrays of these tokens, which follow those of the call before."""
        texts, offsets = [], []
        for token, _ in entries:
            text, _ = self._codec.token_text(token)
            texts.append(text)
            offsets.append(self._offset)
            self._offset += len(text)
        tops = [{self._codec.token_text(token)[0]: value for token, value in top} for _, (_, top) in entries]
        return {
            "tokens": texts,
            "token_logprobs": [logprob for _, (logprob, _) in entries],
            "top_logprobs": tops if self._has_top else None,
            "text_offset": offsets,
        }
