"""A keyed work queue: each key at most once in the queue and at most once in work.

`add` says that something about a key may have changed; `take` hands out the next due key; `finish` ends the pass and
says when to look again. A key that is added while it is being worked on runs once more afterwards. Failures back off
exponentially up to a cap, and events about a failing key cannot turn that into a hot loop. The watch edge adds keys,
the workers of `worker.py` take them; there is one queue per process and it lives on one event loop.
"""

import asyncio
import heapq
from dataclasses import dataclass

from forebay.contract.clock import Clock
from forebay.contract.errors import Bug


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names one resource to reconcile; `namespace` is empty for cluster-scoped kinds."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}" if self.namespace else f"{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True)
class Done:
    """A pass that ended well; `requeue_after_s` asks for another look without an event."""

    requeue_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A pass that must be tried again, not earlier than `retry_after_s` when the server asked for that."""

    retry_after_s: float = 0.0


Outcome = Done | Failed


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Time rules, in seconds."""

    spacing_s: float = 0.05
    """Pause before a key that changed during its own pass runs again; events of one burst share a pass."""
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 300.0
    event_backoff_cap_s: float = 5.0
    """While a key is failing, an event about it waits at most this long: the event may be the fix."""


@dataclass(slots=True)
class _Failure:
    count: int
    not_before_s: float


class KeyedQueue:
    """See the module's text. No method may be called from another thread."""

    def __init__(self, clock: Clock, policy: QueuePolicy) -> None:
        self._clock = clock
        self._policy = policy
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._running: dict[Key, float | None] = {}
        self._started: dict[Key, float] = {}
        self._failures: dict[Key, _Failure] = {}
        self._changed = asyncio.Event()

    def add(self, key: Key, delay_s: float = 0.0) -> None:
        """Ask for a pass of `key` in `delay_s` seconds; the earliest of several wishes counts."""
        due = self._clock.monotonic_s() + delay_s
        failure = self._failures.get(key)
        if failure is not None:
            due = max(due, failure.not_before_s)
        if key in self._running:
            wish = self._running[key]
            self._running[key] = due if wish is None else min(wish, due)
            return
        self._schedule(key, due)

    async def take(self) -> Key:
        """Wait for the next due key and mark it as running until `finish`."""
        while True:
            now = self._clock.monotonic_s()
            due = self._next_due()
            if due is not None and due <= now:
                return self._start(now)
            self._changed.clear()
            try:
                async with asyncio.timeout(None if due is None else due - now):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def finish(self, key: Key, outcome: Outcome) -> None:
        """End the pass of a key taken before, and schedule the next one if something asks for it."""
        if key not in self._running:
            raise Bug(f"{key} was finished without being taken")
        wish = self._running.pop(key)
        del self._started[key]
        now = self._clock.monotonic_s()
        if isinstance(outcome, Failed):
            self._schedule_retry(key, now, wish, outcome)
            return
        self._failures.pop(key, None)
        dues = [] if wish is None else [max(wish, now + self._policy.spacing_s)]
        if outcome.requeue_after_s is not None:
            dues.append(now + max(outcome.requeue_after_s, self._policy.spacing_s))
        if dues:
            self._schedule(key, min(dues))

    @property
    def depth(self) -> int:
        """Keys that are due now and wait for a worker."""
        now = self._clock.monotonic_s()
        return sum(1 for due in self._due.values() if due <= now)

    @property
    def failing(self) -> int:
        """Keys whose last pass failed."""
        return len(self._failures)

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing is scheduled."""
        return not self._due and not self._running

    def longest_wait_s(self) -> float:
        """Age of the oldest due key that no worker has taken."""
        now = self._clock.monotonic_s()
        return max(0.0, now - min(self._due.values(), default=now))

    def longest_pass_s(self) -> float:
        """Age of the oldest pass still in work."""
        now = self._clock.monotonic_s()
        return max((now - started for started in self._started.values()), default=0.0)

    def _schedule(self, key: Key, due: float) -> None:
        known = self._due.get(key)
        if known is not None and known <= due:
            return
        self._due[key] = due
        # An older heap entry of the key stays behind and is skipped when it surfaces.
        heapq.heappush(self._heap, (due, key))
        self._changed.set()

    def _schedule_retry(self, key: Key, now: float, wish: float | None, outcome: Failed) -> None:
        before = self._failures.get(key)
        count = 1 if before is None else before.count + 1
        policy = self._policy
        backoff = min(policy.backoff_cap_s, policy.backoff_base_s * 2.0 ** min(count - 1, 30))
        backoff = max(backoff, outcome.retry_after_s)
        not_before = now + max(min(backoff, policy.event_backoff_cap_s), outcome.retry_after_s)
        self._failures[key] = _Failure(count, not_before)
        self._schedule(key, now + backoff if wish is None else max(wish, not_before))

    def _next_due(self) -> float | None:
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _start(self, now: float) -> Key:
        _, key = heapq.heappop(self._heap)
        del self._due[key]
        self._running[key] = None
        self._started[key] = now
        return key
