"""How many tokens a row should have drafted, from how many of its drafts were accepted so far.

Duty: one `DraftState` a request, pure. A row starts with a short limit; the limit doubles when everything is accepted
and falls to one more than was accepted otherwise. When drafts do not pay, the row rests: it decodes plainly for a
number of tokens, then probes with one draft; each probe that fails doubles the rest. So poor acceptance costs a few
short drafts at the start and a vanishing share later. A step in which nothing was proposed counts as neither. Called
by the planner (limit) and the scheduler (outcome).
"""

from typing import Final

from forebay.engine.request import DraftKind, Speculation, SpeculationReport

FIRST_LIMIT: Final = 2
FIRST_REST_TOKENS: Final = 8
MAX_REST_TOKENS: Final = 128
EMPTY_REST_TOKENS: Final = 4
"""Plain tokens after a step without a proposal: such a step cannot overlap with the next, so not every one asks."""
_WEIGHT: Final = 0.35
_MIN_GAIN: Final = {DraftKind.NGRAM: 0.35, DraftKind.MODEL: 0.6}
"""Accepted tokens a step below which drafts do not pay: looking up is cheap, running a draft model is not."""


class DraftState:
    """Adaptive limit and statistics of one request. `next_at` is the length from which it may draft again."""

    __slots__ = ("_gain", "_histogram", "_limit", "_max_tokens", "_min_gain", "_rest", "accepted", "drafted", "next_at")

    def __init__(self, speculation: Speculation) -> None:
        self._max_tokens = speculation.max_tokens
        self._min_gain = _MIN_GAIN[speculation.kind]
        self._limit = min(FIRST_LIMIT, speculation.max_tokens)
        self._gain = 1.0
        self._rest = FIRST_REST_TOKENS
        self._histogram = [0] * (speculation.max_tokens + 1)
        self.next_at = 0
        self.drafted = 0
        self.accepted = 0

    def limit(self, length: int) -> int:
        """Tokens to draft for a row of `length` tokens; 0 while it rests."""
        return self._limit if length >= self.next_at else 0

    def note(self, limit: int, drafted: int, accepted: int, length: int) -> None:
        """A step that might draft `limit` tokens drafted and accepted these; the row now has `length` tokens."""
        if not drafted:
            # Nothing was found to propose, which says nothing about the next find and cost no computation.
            self.next_at = length + EMPTY_REST_TOKENS
            return
        self.drafted += drafted
        self.accepted += accepted
        self._histogram[accepted] += 1
        self._gain += _WEIGHT * (accepted - self._gain)
        if self._gain < self._min_gain:
            # The probe after the rest decides alone: a hit lifts the gain over the bar, a miss sinks it below.
            self._gain = self._min_gain
            self._limit = 1
            self.next_at = length + self._rest
            self._rest = min(2 * self._rest, MAX_REST_TOKENS)
        elif accepted == limit:
            self._limit = min(2 * limit, self._max_tokens)
            self._rest = FIRST_REST_TOKENS
        else:
            self._limit = min(accepted + 1, self._max_tokens)

    def postpone(self, length: int) -> None:
        """There was no room to draft: decode plainly for a while, so that steps may overlap again."""
        self.next_at = length + FIRST_REST_TOKENS

    def report(self) -> SpeculationReport:
        """Statistics so far."""
        return SpeculationReport(self.drafted, self.accepted, sum(self._histogram), tuple(self._histogram))
