"""The page pools of all layer groups as one: what a request takes, holds and gives back in every group at once.

Duty: claims that succeed in every group or change nothing, retention of what a request gives back, and how many pages
a running row may take without breaking what was promised to others. A page table has one tuple of pages a group.
Invariant: under `GUARANTEED_NO_EVICT` the pages that running rows have or were promised never exceed a group's total,
so no row is ever evicted. Owned by the scheduler, used by the planner too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.engine.blocks import BlockPool
from forebay.engine.limits import AdmissionPolicy, PoolGroup, SchedulerLimits
from forebay.engine.prefix import Match, PrefixIndex
from forebay.engine.request import Request
from forebay.engine.rows import RowTable

Tables = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """Pages of one layer group now: free + used + held is the total; `free` includes `cached`."""

    name: str
    used: int
    held: int
    free: int
    cached: int
    total: int


class PagePools:
    """One pool for each of `limits.groups`; `now_s` is the time of the scheduler's last event."""

    def __init__(self, limits: SchedulerLimits, index: PrefixIndex, rows: RowTable) -> None:
        self.pools = tuple(BlockPool(group.pages, index, number) for number, group in enumerate(limits.groups))
        self.now_s = 0.0
        self._limits = limits
        self._rows = rows
        self._promises = limits.admission is AdmissionPolicy.GUARANTEED_NO_EVICT

    def loads(self) -> tuple[PoolLoad, ...]:
        """Pages by group."""
        return tuple(
            PoolLoad(group.name, pool.used, pool.held, pool.free, pool.cached, pool.total)
            for group, pool in zip(self._limits.groups, self.pools, strict=True)
        )

    def free_pages(self) -> tuple[int, ...]:
        """Free pages by group."""
        return tuple([pool.free for pool in self.pools])

    def tick(self, now_s: float) -> None:
        """Move time on; retentions that are over end."""
        self.now_s = now_s
        for pool in self.pools:
            pool.expire(now_s)

    def hold(self, tables: Tables) -> None:
        """A step in flight may touch these pages."""
        for pool, pages in zip(self.pools, tables, strict=True):
            pool.hold(pages)

    def unhold(self, tables: Tables) -> None:
        """That step is committed."""
        for pool, pages in zip(self.pools, tables, strict=True):
            pool.unhold(pages)

    def release(self, request: Request, firsts: Sequence[int], tables: Tables) -> None:
        """Give back a request's pages; those of group g start at block `firsts[g]`. The end of a prefix goes first."""
        for group, (first, pages) in enumerate(zip(firsts, tables, strict=True)):
            self.release_blocks(request, group, first, pages)

    def release_blocks(self, request: Request, group: int, first: int, pages: Sequence[int]) -> None:
        """Give back `pages` of blocks from `first` on, kept as long as the request asks for their tokens."""
        pool = self.pools[group]
        if request.retention:
            for block, page in enumerate(pages, first):
                self._retain(request, pool, block, page)
        pool.release(reversed(pages))

    def _retain(self, request: Request, pool: BlockPool, block: int, page: int) -> None:
        size = self._limits.page_tokens
        begin, end = block * size, (block + 1) * size
        asked = [item for item in request.retention if item.start < end and item.end > begin and item.duration_s > 0]
        if asked:
            best = max(asked, key=lambda item: (item.priority, item.duration_s))
            pool.retain(page, best.priority, self.now_s + best.duration_s, self.now_s)

    def claim(self, request: Request, match: Match) -> Tables | None:
        """Tables for a request that starts after `match`, or None and no change when it may not start now.

        Full groups get pages for all tokens so far; window groups only a page to copy to, since their rows take pages
        as they go. The pages to copy from are held.
        """
        sources: Tables = tuple((page,) for page in match.copy_pages) or ((),) * len(self.pools)
        for pool, pages in zip(self.pools, match.pages, strict=True):
            pool.share(pages)
        self.hold(sources)
        groups = self._limits.groups
        if not all(self._has_room(number, group, request, match) for number, group in enumerate(groups)):
            self.unhold(sources)
            for pool, pages in zip(self.pools, match.pages, strict=True):
                pool.release(reversed(pages))
            return None
        return tuple([self._table(number, group, request, match) for number, group in enumerate(groups)])

    def _table(self, number: int, group: PoolGroup, request: Request, match: Match) -> tuple[int, ...]:
        count = bool(match.copy_tokens) if group.window_tokens else self._fresh(request, match)
        fresh = self.pools[number].take(count) or ()
        # Blocks behind the window have no page; any id may stand in their place.
        return ((0,) * match.firsts[number]) + match.pages[number] + tuple(fresh)

    def _fresh(self, request: Request, match: Match) -> int:
        return self._limits.pages_for(len(request.tokens)) - match.blocks

    def _has_room(self, number: int, group: PoolGroup, request: Request, match: Match) -> bool:
        limits, free = self._limits, self.pools[number].free
        longest = limits.resident_pages(group, request.max_length - 1)
        if group.window_tokens:
            wanted = max(0, limits.resident_pages(group, len(request.tokens)) - len(match.pages[number]))
            if self._promises:
                return free >= wanted and longest <= self._spare(number)
        else:
            wanted = self._fresh(request, match)
            if self._promises:
                promised = sum(self._outstanding(number, group, slot) for slot in self._rows.order)
                return free >= promised + longest - match.blocks
        # Running rows may each need a page soon; without this, admitting would mean preempting at once.
        return free >= wanted + len(self._rows.order)

    def allowance(self, number: int, slot: int, wanted: int, reserve: int) -> int:
        """How many of `wanted` pages of a group a running row may take now without preempting anyone.

        `reserve` free pages are left alone where nothing is promised; what was promised to a row it may always take.
        """
        group, free = self._limits.groups[number], self.pools[number].free
        if not self._promises:
            return max(0, min(wanted, free - reserve))
        if group.window_tokens:
            own = self._outstanding(number, group, slot)
            if own < wanted:
                free = min(free, max(own, self._spare(number)))
        return max(0, min(wanted, free))

    def _outstanding(self, number: int, group: PoolGroup, slot: int) -> int:
        """Pages that a row was promised and does not have yet."""
        return self._promised(group, slot) - self._rows.page_count(number, slot)

    def _promised(self, group: PoolGroup, slot: int) -> int:
        return self._limits.resident_pages(group, self._rows.max_length[slot] - 1)

    def _spare(self, number: int) -> int:
        """Pages of a window group beyond what its rows have or were promised. Shared pages count for each row: a row
        that leaves one behind frees nothing as long as another has it."""
        group, rows = self._limits.groups[number], self._rows
        taken = sum(max(rows.page_count(number, slot), self._promised(group, slot)) for slot in rows.order)
        return self.pools[number].total - taken
