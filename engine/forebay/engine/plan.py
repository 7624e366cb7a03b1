"""One step of the engine as a frozen value: what the scheduler asks of a runner, and what comes back.

Duty: the only shapes that cross between `scheduler.py` and a runner. A plan has parallel arrays with one entry per
scheduled row; it names slots, positions and pages, never requests. Rows that compute one token come first.
Invariants: steps are numbered from 1 without gaps and committed in that order; a page in a plan stays allocated until
the plan's step is committed, and so does the slot; results that carry an old epoch are dropped at commit.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from forebay.engine.request import Ended, SlotStart

TOKEN_ON_DEVICE: Final = -1
"""Stands in `StepPlan.tokens` for the token that the step before sampled for the same slot."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Rows to compute in one step.

    `starts[i]` is the first position computed for row i (equal to its tokens already in KV) and `counts[i] >= 1` how
    many. `tokens` is flat, `sum(counts)` long, in row order. `page_tables[g][i]` are the pages of row i in layer group
    g; they cover at least the positions `[0, starts[i] + counts[i] + draft_limits[i])`, and entries whose positions
    fell out of the group's window are never read. `samples[i]` is False for a prefill chunk that does not reach the
    last known token. `fresh[i]` is set for rows new to their slot. `copies` are `(group, source page, target page,
    tokens)` to run first. The runner may draft and compute up to `draft_limits[i]` tokens after row i's own; only rows
    of one token have a limit above 0, and no other step is in flight then.
    """

    step: int
    slots: tuple[int, ...]
    epochs: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    tokens: tuple[int, ...]
    page_tables: tuple[tuple[tuple[int, ...], ...], ...]
    samples: tuple[bool, ...]
    fresh: tuple[SlotStart | None, ...]
    copies: tuple[tuple[int, int, int, int], ...]
    draft_limits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probability of a chosen token, and the `top` likeliest as (token id, log probability), best first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """Tokens of one step: `slots`, `epochs`, `token_counts` and `drafted` have one entry per row with `samples` set.

    `tokens` is flat: row i adds `token_counts[i]` of them, one more than its accepted drafts; `drafted[i]` were
    proposed. `logprobs` is parallel to `tokens`, or empty when no row asked. `vectors` has (slot, embedding) of rows
    that asked for one; such a row has no tokens. `faults` has (sampled row, message) of sequences that cannot go on;
    such a row has no tokens either. With `fault` set the arrays are empty: nothing may be used.
    """

    step: int
    slots: tuple[int, ...]
    epochs: tuple[int, ...]
    token_counts: tuple[int, ...]
    tokens: tuple[int, ...]
    drafted: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    vectors: tuple[tuple[int, tuple[float, ...]], ...] = ()
    faults: tuple[tuple[int, str], ...] = ()
    fault: str | None = None

    @staticmethod
    def failed(step: int, fault: str) -> "StepResult":
        """A step that computed nothing."""
        return StepResult(step, (), (), (), (), (), fault=fault)

    @staticmethod
    def plain(step: int, slots: tuple[int, ...], epochs: tuple[int, ...], tokens: tuple[int, ...]) -> "StepResult":
        """One token for each row, nothing drafted."""
        return StepResult(step, slots, epochs, (1,) * len(slots), tokens, (0,) * len(slots))


@dataclass(frozen=True, slots=True)
class StepEvents:
    """What a commit tells the clients: `tokens[i]` is for `request_ids[i]`; a stop token is never among them.

    A request may have several tokens, in order. `logprobs` is parallel to `tokens`, or empty. `started` has (request
    id, prompt tokens reused from the prefix cache) of requests whose first step this was.
    """

    request_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    ended: tuple[Ended, ...]
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    started: tuple[tuple[int, int], ...] = ()


class StepHandle(Protocol):
    """A launched step."""

    def result(self) -> StepResult:
        """Wait for the step and return its tokens; a failure is a result with `fault`, not an exception."""


class Runner(Protocol):
    """Computes steps in launch order. Up to two steps are launched and not yet collected."""

    def launch(self, plan: StepPlan) -> StepHandle:
        """Start a step after all launched before it."""
