"""Counts of KV pages: which are free, used by requests, or held by steps in flight.

Invariants: free + used + held == total, always. A page is *used* while a request refers to it, *held* while only steps
in flight do, else *free*; a free page that the prefix index knows keeps its content until it is needed, least
recently used first. A page is never handed out while anyone refers to it or a step in flight may still touch it.
Releasing more than was taken raises `Bug`. Owned by the scheduler; knows ids, not memory.
"""

from collections import OrderedDict
from collections.abc import Iterable

from forebay.contract.errors import Bug
from forebay.engine.prefix import PrefixIndex


class BlockPool:
    """`total` pages with ids 0..total-1."""

    def __init__(self, total: int, index: PrefixIndex) -> None:
        self.total = total
        self.used = 0
        self.held = 0
        self._index = index
        self._users = [0] * total
        self._holds = [0] * total
        self._empty = list(range(total - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Pages that `take` can hand out, cached ones included."""
        return len(self._empty) + len(self._cached)

    @property
    def cached(self) -> int:
        """Free pages whose content can still be reused."""
        return len(self._cached)

    def take_one(self) -> int | None:
        """A page for one user, or None when none is free."""
        return self._pop() if self._empty or self._cached else None

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
        """One user less of each page."""
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

    def _pop(self) -> int:
        if self._empty:
            page = self._empty.pop()
        else:
            page, _ = self._cached.popitem(last=False)
            self._index.drop(page)
        self._users[page] = 1
        self.used += 1
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
        elif page in self._index:
            self._cached[page] = None
        else:
            self._empty.append(page)
