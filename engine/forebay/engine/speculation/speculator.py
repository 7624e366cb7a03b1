"""Sends each slot's speculation to its drafter.

A request names a kind of drafter; a kind that this engine has not is served without drafts, since drafting never
changes tokens. Called by the runner: `start` for rows new to a slot, `extend` with every token kept, `propose` once a
step.
"""

from collections.abc import Mapping, Sequence

from forebay.engine.request import DraftKind, SlotStart
from forebay.engine.speculation.drafter import Drafter, DraftRow


class Speculator:
    """Drafters by kind, and which one serves each slot."""

    def __init__(self, drafters: Mapping[DraftKind, Drafter]) -> None:
        self._drafters = dict(drafters)
        self._by_slot: dict[int, tuple[DraftKind, int]] = {}

    def start(self, slot: int, start: SlotStart) -> None:
        """A request takes `slot`."""
        before = self._by_slot.pop(slot, None)
        if before is not None:
            self._drafters[before[0]].forget(slot)
        wanted = start.speculation
        if wanted is not None and wanted.kind in self._drafters:
            self._by_slot[slot] = (wanted.kind, wanted.max_tokens)
            self._drafters[wanted.kind].start(slot, start.tokens)

    def serves(self, slot: int) -> bool:
        """Whether the slot's request speculates."""
        return slot in self._by_slot

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """`tokens` were kept for a slot that is served."""
        self._drafters[self._by_slot[slot][0]].extend(slot, tokens)

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """At most `limit` tokens for each of `rows`, which are all rows of the step that are served."""
        proposed: list[list[int]] = [[] for _ in rows]
        for kind, drafter in self._drafters.items():
            places = [place for place, row in enumerate(rows) if self._by_slot[row.slot][0] is kind]
            for place, tokens in zip(places, self._ask(drafter, [rows[place] for place in places]), strict=True):
                proposed[place] = tokens
        return proposed

    def _ask(self, drafter: Drafter, rows: Sequence[DraftRow]) -> list[list[int]]:
        proposals = drafter.propose(rows) if rows else []
        return [
            tokens[: min(row.limit, self._by_slot[row.slot][1])] for row, tokens in zip(rows, proposals, strict=True)
        ]
