"""The running requests as parallel arrays by slot: the only per-request data that planning a decode touches.

A slot goes free -> taken -> (drained ->) free; its epoch rises when its request leaves it, so that a result of a step
in flight can be told from one for the next request. `computed` counts tokens whose KV is written by the steps planned
so far, `length` all tokens including those sampled by steps in flight, `known` those that are known here; a row has
`length - computed` tokens to compute. A row without a request has length 0. Slots of ended requests are free again
only after `give_back`. `tables[g][slot]` are the pages of layer group g by block; blocks before `firsts[g][slot]` fell
out of the window and have no page any more. `capacity` is the positions that have a page in every group, `drop_at` the
next position whose step lets a page fall out of a window. Owned by the scheduler.
"""

import bisect
from collections.abc import Sequence
from typing import Final

from forebay.contract.errors import Bug
from forebay.engine.limits import SchedulerLimits, first_visible_block
from forebay.engine.request import Request

NEVER: Final = 2**62


class RowTable:
    """`limits.max_running` slots; `order` lists the running ones by rank, best first."""

    def __init__(self, limits: SchedulerLimits) -> None:
        size = limits.max_running
        self.page_tokens = limits.page_tokens
        self.order: list[int] = []
        self.requests: list[Request | None] = [None] * size
        self.ids = [0] * size
        self.epochs = [1] * size
        self.computed = [0] * size
        self.length = [0] * size
        self.known = [0] * size
        self.max_length = [0] * size
        self.capacity = [0] * size
        self.drop_at = [NEVER] * size
        self.last_token = [0] * size
        self.tables: list[list[tuple[int, ...]]] = [[()] * size for _ in limits.groups]
        self.firsts: list[list[int]] = [[0] * size for _ in limits.groups]
        self.tokens: list[list[int]] = [[] for _ in range(size)]
        self.stop_ids: list[frozenset[int]] = [frozenset()] * size
        self.drafting: dict[int, Request] = {}
        self._windows = [
            (number, group.window_tokens) for number, group in enumerate(limits.groups) if group.window_tokens
        ]
        self._free = list(range(size - 1, -1, -1))

    @property
    def free(self) -> int:
        """Slots that `take` can give."""
        return len(self._free)

    def take(self, request: Request, tables: Sequence[tuple[int, ...]], firsts: Sequence[int], computed: int) -> None:
        """Give `request` a slot, with pages whose first `computed` tokens are in KV already."""
        slot = self._free.pop()
        request.slot = slot
        tokens = request.tokens
        self.requests[slot] = request
        self.ids[slot] = request.id
        self.computed[slot] = computed
        self.length[slot] = self.known[slot] = len(tokens)
        self.max_length[slot] = request.max_length
        self.last_token[slot] = tokens[-1]
        for group, pages in enumerate(tables):
            self.tables[group][slot] = pages
            self.firsts[group][slot] = firsts[group]
        self.tokens[slot] = tokens
        self.stop_ids[slot] = request.stop_ids
        if request.drafts is not None:
            self.drafting[slot] = request
        self._measure(slot)
        bisect.insort(self.order, slot, key=self._rank)

    def page_count(self, group: int, slot: int) -> int:
        """Pages that a row has in a group."""
        return len(self.tables[group][slot]) - self.firsts[group][slot]

    def grow(self, group: int, slot: int, pages: Sequence[int]) -> None:
        """Append pages to a row."""
        self.tables[group][slot] = (*self.tables[group][slot], *pages)
        self._measure(slot)

    def fall(self, slot: int, computed: int) -> list[tuple[int, int, tuple[int, ...]]]:
        """Give up pages that no step from position `computed` on sees, as (group, first block, pages)."""
        fallen: list[tuple[int, int, tuple[int, ...]]] = []
        for group, window in self._windows:
            first = self.firsts[group][slot]
            live = min(first_visible_block(computed, window, self.page_tokens), len(self.tables[group][slot]))
            if live > first:
                fallen.append((group, first, self.tables[group][slot][first:live]))
                self.firsts[group][slot] = live
        self._measure(slot)
        return fallen

    def trim(self, slot: int, blocks: int) -> list[tuple[int, int, tuple[int, ...]]]:
        """Give up pages of blocks from `blocks` on, as (group, first block, pages)."""
        trimmed: list[tuple[int, int, tuple[int, ...]]] = []
        for group, tables in enumerate(self.tables):
            if len(tables[slot]) > blocks:
                trimmed.append((group, blocks, tables[slot][blocks:]))
                tables[slot] = tables[slot][:blocks]
        if trimmed:
            self._measure(slot)
        return trimmed

    def leave(self, slot: int) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """End a row: later results for it are stale. Returns first blocks and pages by group; the slot stays taken."""
        self.order.pop(bisect.bisect_left(self.order, self._rank(slot), key=self._rank))
        firsts = tuple([group[slot] for group in self.firsts])
        pages = tuple([group[slot][first:] for group, first in zip(self.tables, firsts, strict=True)])
        self.requests[slot] = None
        self.epochs[slot] += 1
        self.computed[slot] = self.length[slot] = self.known[slot] = self.capacity[slot] = 0
        self.drop_at[slot] = NEVER
        for group, tables in enumerate(self.tables):
            tables[slot] = ()
            self.firsts[group][slot] = 0
        self.tokens[slot] = []
        self.stop_ids[slot] = frozenset()
        self.drafting.pop(slot, None)
        return firsts, pages

    def give_back(self, slot: int) -> None:
        """Make a left slot free: no step in flight names it any more."""
        self._free.append(slot)

    def request_at(self, slot: int) -> Request:
        """The request of a running row."""
        request = self.requests[slot]
        if request is None:
            raise Bug(f"slot {slot} has no request")
        return request

    def _measure(self, slot: int) -> None:
        size = self.page_tokens
        blocks = len(self.tables[0][slot])
        for tables in self.tables[1:]:
            blocks = min(blocks, len(tables[slot]))
        self.capacity[slot] = blocks * size
        drop_at = NEVER
        for group, window in self._windows:
            drop_at = min(drop_at, (self.firsts[group][slot] + 1) * size + window - 1)
        self.drop_at[slot] = drop_at

    def _rank(self, slot: int) -> tuple[int, int]:
        return self.request_at(slot).rank
