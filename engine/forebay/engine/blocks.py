"""Counts of one layer group's KV pages: which are free, used by requests, or held by steps in flight.

Invariants: free + used + held == total, always. A page is *used* while a request refers to it, *held* while only steps
in flight do, else *free*; a free page that the prefix index knows keeps its content until it is needed. Those pages go
by retention priority, then least recently used first; a retention that is over counts as `NORMAL_PRIORITY`. A page is
never handed out while anyone refers to it or a step in flight may still touch it. Releasing more than was taken raises
`Bug`. Retention only orders eviction: it never makes a page unavailable. Owned by `pools.py`; knows ids, not memory.
"""

import heapq
from collections.abc import Iterable

from forebay.contract.errors import Bug
from forebay.engine.prefix import PrefixIndex

NORMAL_PRIORITY = 35
"""Retention priority of a page that no request spoke for."""
_SLACK = 64


class BlockPool:
    """`total` pages of layer group number `group` with ids 0..total-1."""

    def __init__(self, total: int, index: PrefixIndex, group: int = 0) -> None:
        self.total = total
        self.used = 0
        self.held = 0
        self._index = index
        self._group = group
        self._users = [0] * total
        self._holds = [0] * total
        self._empty = list(range(total - 1, -1, -1))
        self._serial = 0
        # Page -> (priority, serial of its last use); the heap also has outdated keys, which are skipped.
        self._cached: dict[int, tuple[int, int]] = {}
        self._eviction: list[tuple[int, int, int]] = []
        # Page -> (priority, end of its retention); again the heap may have outdated entries.
        self._retained: dict[int, tuple[int, float]] = {}
        self._expiry: list[tuple[float, int]] = []

    @property
    def free(self) -> int:
        """Pages that `take` can hand out, cached ones included."""
        return len(self._empty) + len(self._cached)

    @property
    def cached(self) -> int:
        """Free pages whose content can still be reused."""
        return len(self._cached)

    def take(self, count: int) -> list[int] | None:
        """`count` pages, or None and no change when fewer are free."""
        return [self._pop() for _ in range(count)] if count <= self.free else None

    def share(self, pages: Iterable[int]) -> None:
        """One more user of each page; the pages come from the prefix index."""
        for page in pages:
            if self._users[page] == 0:
                self._leave_idle(page)
                self.used += 1
            self._users[page] += 1

    def hold(self, pages: Iterable[int]) -> None:
        """A step in flight may touch `pages` until `unhold`."""
        for page in pages:
            if self._users[page] == 0 and self._holds[page] == 0:
                self._leave_idle(page)
                self.held += 1
            self._holds[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One user less of each page; of those that get free, the first given is evicted first."""
        for page in pages:
            if self._users[page] < 1:
                raise Bug(f"page {page} is released without a user")
            self._users[page] -= 1
            if self._users[page] == 0:
                self.used -= 1
                self._rest(page)

    def unhold(self, pages: Iterable[int]) -> None:
        """The step that held `pages` is committed."""
        for page in pages:
            if self._holds[page] < 1:
                raise Bug(f"page {page} is not held")
            self._holds[page] -= 1
            if self._holds[page] == 0 and self._users[page] == 0:
                self.held -= 1
                self._rest(page)

    def retain(self, page: int, priority: int, until_s: float, now_s: float) -> None:
        """Ask to keep a page in use; a higher priority that lasts stays, an equal one lasts the longer of both."""
        if not self._index.knows(self._group, page):
            return
        had = self._retained.get(page)
        if had is not None and had[1] > now_s:
            if had[0] > priority:
                return
            if had[0] == priority:
                until_s = max(until_s, had[1])
        self._retained[page] = (priority, until_s)
        if len(self._expiry) > 2 * self.total + _SLACK:
            self._expiry = [(until_s, page) for page, (_, until_s) in self._retained.items()]
            heapq.heapify(self._expiry)
        else:
            heapq.heappush(self._expiry, (until_s, page))

    def expire(self, now_s: float) -> None:
        """Let retentions go that are over; the pages keep their place among the normal ones by last use."""
        while self._expiry and self._expiry[0][0] <= now_s:
            until_s, page = heapq.heappop(self._expiry)
            had = self._retained.get(page)
            if had is None or had[1] != until_s:
                continue
            del self._retained[page]
            key = self._cached.get(page)
            if key is not None:
                self._queue(page, NORMAL_PRIORITY, key[1])

    def _pop(self) -> int:
        page = self._empty.pop() if self._empty else self._evict()
        self._users[page] = 1
        self.used += 1
        return page

    def _evict(self) -> int:
        while True:
            priority, serial, page = heapq.heappop(self._eviction)
            if self._cached.get(page) == (priority, serial):
                break
        del self._cached[page]
        self._retained.pop(page, None)
        self._index.drop(self._group, page)
        return page

    def _leave_idle(self, page: int) -> None:
        """Take a page without users out of the held or cached ones."""
        if self._holds[page]:
            self.held -= 1
        elif page in self._cached:
            del self._cached[page]
        else:
            raise Bug(f"page {page} has no content to share")

    def _rest(self, page: int) -> None:
        """Put a page that nobody uses any more where it belongs."""
        if self._holds[page]:
            self.held += 1
        elif self._index.knows(self._group, page):
            self._serial += 1
            had = self._retained.get(page)
            self._queue(page, NORMAL_PRIORITY if had is None else had[0], self._serial)
        else:
            self._empty.append(page)

    def _queue(self, page: int, priority: int, serial: int) -> None:
        self._cached[page] = (priority, serial)
        if len(self._eviction) > 2 * len(self._cached) + _SLACK:
            self._eviction = [(*key, page) for page, key in self._cached.items()]
            heapq.heapify(self._eviction)
        else:
            heapq.heappush(self._eviction, (priority, serial, page))
