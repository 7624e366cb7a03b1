"""The one interface of everything that proposes tokens.

A drafter follows the sequences of its slots: it gets all known tokens at the start and every token kept later. A
proposal is only a guess: the runner verifies it with the model, so a drafter changes how fast tokens come and never
which. Drafters run on the runner's worker thread, before the step's own forward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from forebay.engine.request import SamplingParams
from forebay.engine.runner.executor import TableArray


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One row of a step for its drafter.

    Up to `limit` tokens are wanted after those known. `covered` tokens from the start of the sequence have pages in
    `tables`, one array of page ids for each layer group. `prefill` says that the row still computes its prompt.
    """

    slot: int
    limit: int
    covered: int
    tables: tuple[TableArray, ...]
    params: SamplingParams
    prefill: bool


class Drafter(Protocol):
    """Proposes tokens for the slots it was started on."""

    def start(self, slot: int, tokens: Sequence[int]) -> None:
        """A sequence of known `tokens` takes `slot`; what was there before is forgotten."""

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """`tokens` were kept as the sequence's next."""

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """For each row at most `limit` tokens. Called once a step, with all its rows that this drafter serves."""

    def forget(self, slot: int) -> None:
        """The slot's sequence is none of this drafter's any more; unknown slots are ignored."""
