"""How many tokens a row should have drafted, from how many of its drafts were accepted and who shares the step.

Duty: one `DraftState` a request, pure. A row starts with a short limit; the limit doubles when everything is accepted
and falls to one more than was accepted otherwise. When drafts do not pay, the row rests: it decodes plainly for a
number of tokens, then probes with one draft; each probe that fails doubles the rest. So poor acceptance costs a few
short drafts at the start and a vanishing share later. A step in which nothing was proposed counts as neither.

Alone, verifying a few tokens costs little more than computing one; with many rows each is paid in full. So the share
that must be accepted grows with the rows of the step, and rows that fall short probe together and rarely. Called by the
planner (limits) and the scheduler (outcome).
"""

from collections.abc import Mapping
from typing import Final

from forebay.engine.request import DraftKind, Speculation, SpeculationReport

FIRST_LIMIT: Final = 2
FIRST_REST_TOKENS: Final = 8
MAX_REST_TOKENS: Final = 128
EMPTY_REST_TOKENS: Final = 4
"""Plain tokens after a step without a proposal: such a step cannot overlap with the next, so not every one asks."""
_WEIGHT: Final = 0.35
_FIRST_SHARE: Final = 0.6
_HALF_PAID_ROWS: Final = 3
"""Rows with which a verified token costs half of one computed plainly."""
_FEW_ROWS: Final = 4
_PROBE_STEPS_PER_ROW: Final = 2
_MIN_GAIN: Final = {DraftKind.NGRAM: 0.35, DraftKind.MODEL: 0.6}
"""Accepted tokens a step below which drafts do not pay: looking up is cheap, running a draft model is not."""


class DraftState:
    """Adaptive limit and statistics of one request. `next_at` is the length from which it may draft again."""

    __slots__ = (
        "_gain",
        "_histogram",
        "_limit",
        "_max_tokens",
        "_min_gain",
        "_rest",
        "_share",
        "accepted",
        "drafted",
        "next_at",
    )

    def __init__(self, speculation: Speculation) -> None:
        self._max_tokens = speculation.max_tokens
        self._min_gain = _MIN_GAIN[speculation.kind]
        self._limit = min(FIRST_LIMIT, speculation.max_tokens)
        self._gain = 1.0
        self._share = _FIRST_SHARE
        self._rest = FIRST_REST_TOKENS
        self._histogram = [0] * (speculation.max_tokens + 1)
        self.next_at = 0
        self.drafted = 0
        self.accepted = 0

    def pays(self, rows: int) -> bool:
        """Whether enough of its drafts are accepted for a step of `rows` rows."""
        return self._share >= rows / (rows + _HALF_PAID_ROWS)

    def limit(self, length: int, rows: int = 1) -> int:
        """Tokens to draft for a row of `length` tokens in a step of `rows` rows; 0 while it rests, 1 to probe."""
        if length < self.next_at:
            return 0
        return self._limit if self.pays(rows) else 1

    def note(self, limit: int, drafted: int, accepted: int, length: int) -> None:
        """A step that might draft `limit` tokens drafted and accepted these; the row now has `length` tokens."""
        if not drafted:
            # Nothing was found to propose, which says nothing about the next find and cost no computation.
            self.next_at = length + EMPTY_REST_TOKENS
            return
        self.drafted += drafted
        self.accepted += accepted
        self._histogram[accepted] += 1
        self._share += _WEIGHT * (accepted / drafted - self._share)
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


class ProbeTurns:
    """When rows whose drafts do not pay may probe: in the same steps, and the more rarely the more rows there are."""

    __slots__ = ("_next_step",)

    def __init__(self) -> None:
        self._next_step = 0

    def choose(self, wanting: Mapping[int, DraftState], rows: int, step: int) -> frozenset[int]:
        """Those of `wanting`, by slot, that draft in step number `step` of `rows` rows."""
        may_probe = step >= self._next_step
        return frozenset(slot for slot, state in wanting.items() if may_probe or state.pays(rows))

    def note(self, probes: bool, rows: int, step: int) -> None:
        """Step number `step` was planned, with or without probes."""
        if probes and rows > _FEW_ROWS:
            self._next_step = step + _PROBE_STEPS_PER_ROW * rows
