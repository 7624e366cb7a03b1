"""Requests that wait to run, and the order in which they may.

Order: the highest priority first. Within a priority, preempted requests by arrival come before queued ones; queued
ones are first in, first out for each tenant, and the tenant with the least service goes next. Service is charged in
tokens (prompt plus the most it may generate) when a request is admitted, and what it did not use is given back when it
ends. A tenant that comes back starts at the least service of those present, so nobody saves up. The head of this order
is never skipped, so a large request is not starved by small ones. Tombstones of aborts that overtook their add are
kept here too, bounded and expiring. Owned by the scheduler.
"""

import bisect
from collections import OrderedDict, deque
from collections.abc import Iterator

from forebay.engine.request import Request, State


class FairShare:
    """Tokens of service by tenant, for tenants with a live request only."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._live: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._live)

    def enter(self, tenant: str) -> None:
        """A request of `tenant` came."""
        if tenant not in self._live:
            self._served[tenant] = min(self._served.values(), default=0)
            self._live[tenant] = 0
        self._live[tenant] += 1

    def charge(self, tenant: str, tokens: int) -> None:
        """Add service; negative gives back."""
        self._served[tenant] += tokens

    def leave(self, tenant: str) -> None:
        """A request of `tenant` ended."""
        self._live[tenant] -= 1
        if self._live[tenant] == 0:
            del self._live[tenant], self._served[tenant]

    def served(self, tenant: str) -> int:
        """Tokens charged to a tenant that has a live request."""
        return self._served[tenant]


class WaitingQueue:
    """Queued and preempted requests."""

    def __init__(self, share: FairShare) -> None:
        self._share = share
        self._queues: dict[int, dict[str, deque[Request]]] = {}
        self._preempted: list[Request] = []
        self.queued = 0

    def __len__(self) -> int:
        return self.queued + len(self._preempted)

    def __iter__(self) -> Iterator[Request]:
        for tenants in self._queues.values():
            for queue in tenants.values():
                yield from queue
        yield from self._preempted

    def push(self, request: Request) -> None:
        """Queue a new request behind its tenant's others."""
        self._queues.setdefault(request.priority, {}).setdefault(request.tenant, deque()).append(request)
        self.queued += 1

    def push_preempted(self, request: Request) -> None:
        """Put a preempted request back, before all queued ones of its priority."""
        bisect.insort(self._preempted, request, key=_rank)

    def head(self) -> Request | None:
        """The request that runs next, or None."""
        resumed = self._preempted[0] if self._preempted else None
        if not self._queues:
            return resumed
        priority = max(self._queues)
        if resumed is not None and resumed.priority >= priority:
            return resumed
        tenants = self._queues[priority]
        tenant = min(tenants, key=lambda name: (self._share.served(name), tenants[name][0].arrival))
        return tenants[tenant][0]

    def remove(self, request: Request) -> None:
        """Take out a request, wherever it waits."""
        if request.state is State.PREEMPTED:
            self._preempted.remove(request)
            return
        tenants = self._queues[request.priority]
        queue = tenants[request.tenant]
        queue.remove(request)
        self.queued -= 1
        if not queue:
            del tenants[request.tenant]
        if not tenants:
            del self._queues[request.priority]


class Tombstones:
    """Ids aborted before they were added; at most `limit`, the oldest go first, each for `life_s` seconds."""

    def __init__(self, limit: int, life_s: float) -> None:
        self._limit = limit
        self._life_s = life_s
        self._expiry_s: OrderedDict[int, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._expiry_s)

    def put(self, request_id: int, now_s: float) -> None:
        """Remember an abort."""
        self.expire(now_s)
        self._expiry_s[request_id] = now_s + self._life_s
        self._expiry_s.move_to_end(request_id)
        if len(self._expiry_s) > self._limit:
            self._expiry_s.popitem(last=False)

    def take(self, request_id: int, now_s: float) -> bool:
        """Whether `request_id` was aborted before; asks once."""
        self.expire(now_s)
        return self._expiry_s.pop(request_id, None) is not None

    def expire(self, now_s: float) -> None:
        """Forget what is too old."""
        while self._expiry_s and next(iter(self._expiry_s.values())) <= now_s:
            self._expiry_s.popitem(last=False)


def _rank(request: Request) -> tuple[int, int]:
    return request.rank
