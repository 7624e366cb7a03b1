"""The running requests as parallel arrays by slot: the only per-request data that planning a decode touches.

A slot goes free -> taken -> (drained ->) free; its epoch rises when its request leaves it, so that a result of a step
in flight can be told from one for the next request. `computed` counts tokens whose KV is written by the steps planned
so far, `length` all tokens including those sampled by steps in flight, `known` those that are known here; a row has
`length - computed` tokens to compute. A row without a request has length 0. Slots of ended requests are free again
only after `give_back`. Owned by the scheduler.
"""

import bisect

from forebay.contract.errors import Bug
from forebay.engine.request import Request


class RowTable:
    """`size` slots; `order` lists the running ones by rank, best first."""

    def __init__(self, size: int, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.order: list[int] = []
        self.requests: list[Request | None] = [None] * size
        self.ids = [0] * size
        self.epochs = [1] * size
        self.computed = [0] * size
        self.length = [0] * size
        self.known = [0] * size
        self.max_length = [0] * size
        self.capacity = [0] * size
        self.last_token = [0] * size
        self.tables: list[tuple[int, ...]] = [()] * size
        self.tokens: list[list[int]] = [[] for _ in range(size)]
        self.stop_ids: list[frozenset[int]] = [frozenset()] * size
        self._free = list(range(size - 1, -1, -1))

    @property
    def free(self) -> int:
        """Slots that `take` can give."""
        return len(self._free)

    def take(self, request: Request, pages: tuple[int, ...], computed: int) -> None:
        """Give `request` a slot, with `pages` whose first `computed` tokens are in KV already."""
        slot = self._free.pop()
        request.slot = slot
        tokens = request.tokens
        self.requests[slot] = request
        self.ids[slot] = request.id
        self.computed[slot] = computed
        self.length[slot] = self.known[slot] = len(tokens)
        self.max_length[slot] = request.max_length
        self.capacity[slot] = len(pages) * self.page_tokens
        self.last_token[slot] = tokens[-1]
        self.tables[slot] = pages
        self.tokens[slot] = tokens
        self.stop_ids[slot] = request.stop_ids
        bisect.insort(self.order, slot, key=self._rank)

    def grow(self, slot: int, page: int) -> None:
        """Append a page to a row."""
        self.tables[slot] = (*self.tables[slot], page)
        self.capacity[slot] += self.page_tokens

    def leave(self, slot: int) -> tuple[int, ...]:
        """End a row: later results for it are stale. Returns its pages; the slot stays taken."""
        self.order.pop(bisect.bisect_left(self.order, self._rank(slot), key=self._rank))
        pages = self.tables[slot]
        self.requests[slot] = None
        self.epochs[slot] += 1
        self.computed[slot] = self.length[slot] = self.known[slot] = self.capacity[slot] = 0
        self.tables[slot] = ()
        self.tokens[slot] = []
        self.stop_ids[slot] = frozenset()
        return pages

    def give_back(self, slot: int) -> None:
        """Make a left slot free: no step in flight names it any more."""
        self._free.append(slot)

    def promised_pages(self) -> int:
        """Pages that the running rows may still need to reach their longest end."""
        return sum(-(-(self.max_length[slot] - 1) // self.page_tokens) - len(self.tables[slot]) for slot in self.order)

    def request_at(self, slot: int) -> Request:
        """The request of a running row."""
        request = self.requests[slot]
        if request is None:
            raise Bug(f"slot {slot} has no request")
        return request

    def _rank(self, slot: int) -> tuple[int, int]:
        return self.request_at(slot).rank
