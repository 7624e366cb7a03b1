"""One step of the engine as a frozen value: what the scheduler asks of a runner, and what comes back.

Duty: the only shapes that cross between `scheduler.py` and a runner. A plan has parallel arrays with one entry per
scheduled row; it names slots, positions and pages, never requests. Rows that compute one token come first.
Invariants: steps are numbered from 1 without gaps and committed in that order; a page in a plan stays allocated until
the plan's step is committed, and so does the slot; results that carry an old epoch are dropped at commit.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from forebay.engine.request import Ended, SamplingParams

TOKEN_ON_DEVICE: Final = -1
"""Stands in `StepPlan.tokens` for the token that the step before sampled for the same slot."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Rows to compute in one step.

    `starts[i]` is the first position computed for row i (equal to its tokens already in KV) and `counts[i] >= 1` how
    many. `tokens` is flat, `sum(counts)` long, in row order. `page_tables[i]` covers at least the positions
    `[0, starts[i] + counts[i])`. `samples[i]` is False for a prefill chunk that does not reach the last known token.
    `sampling[i]` is set for rows new to their slot. `copies` are `(source page, target page, tokens)` to run first.
    """

    step: int
    slots: tuple[int, ...]
    epochs: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    tokens: tuple[int, ...]
    page_tables: tuple[tuple[int, ...], ...]
    samples: tuple[bool, ...]
    sampling: tuple[SamplingParams | None, ...]
    copies: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """Sampled tokens of one step, one entry per row with `samples` set, in row order.

    With `fault` set the arrays are empty: the step computed nothing that may be used.
    """

    step: int
    slots: tuple[int, ...]
    epochs: tuple[int, ...]
    tokens: tuple[int, ...]
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class StepEvents:
    """What a commit tells the clients: `tokens[i]` is for `request_ids[i]`; a stop token is never among them."""

    request_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    ended: tuple[Ended, ...]


class StepHandle(Protocol):
    """A launched step."""

    def result(self) -> StepResult:
        """Wait for the step and return its tokens; a failure is a result with `fault`, not an exception."""


class Runner(Protocol):
    """Computes steps in launch order. Up to two steps are launched and not yet collected."""

    def launch(self, plan: StepPlan) -> StepHandle:
        """Start a step after all launched before it."""
