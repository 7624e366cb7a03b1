"""A circuit breaker for one endpoint.

It opens after consecutive failures that are the endpoint's own: connect errors, 5xx answers and stalls, never 4xx or
429. Open for a time that doubles up to a cap, then one probe decides. The breaker only advises: `policy` honours at
most half of a pool, so that a bad request or a bad network never turns into a total outage.
"""

import enum
from dataclasses import dataclass


class BreakerState(enum.Enum):
    """CLOSED lets all through, OPEN none until its time is over, PROBING waits for the one request it let through."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


_MOVES = {
    BreakerState.CLOSED: {BreakerState.OPEN},
    BreakerState.OPEN: {BreakerState.PROBING, BreakerState.CLOSED, BreakerState.OPEN},
    BreakerState.PROBING: {BreakerState.CLOSED, BreakerState.OPEN},
}


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """`failures` in a row open it for `open_s`, doubled at each failed probe up to `max_open_s`."""

    failures: int = 3
    open_s: float = 1.0
    max_open_s: float = 30.0


class Breaker:
    """The state of one endpoint; all times are seconds on the caller's monotonic clock."""

    __slots__ = ("_failures", "_limits", "_open_s", "closed", "open_until_s", "state")

    def __init__(self, limits: BreakerLimits) -> None:
        self._limits = limits
        self._failures = 0
        self._open_s = limits.open_s
        self.state = BreakerState.CLOSED
        self.closed = True
        self.open_until_s = 0.0

    def blocks(self, now_s: float) -> bool:
        """Whether a new request should go elsewhere."""
        if self.state is BreakerState.CLOSED:
            return False
        return self.state is BreakerState.PROBING or now_s < self.open_until_s

    def dispatched(self, now_s: float) -> None:
        """A request goes to the endpoint; the first after the open time is the probe."""
        if not self.closed and self.state is BreakerState.OPEN and now_s >= self.open_until_s:
            self._move(BreakerState.PROBING)

    def succeeded(self) -> None:
        """The endpoint answered; 4xx and 429 count as answers."""
        self._failures = 0
        if not self.closed:
            self._open_s = self._limits.open_s
            self._move(BreakerState.CLOSED)

    def failed(self, now_s: float) -> None:
        """A connect error, a 5xx answer or a stall."""
        self._failures += 1
        if self.state is BreakerState.CLOSED and self._failures < self._limits.failures:
            return
        if self.state is BreakerState.PROBING:
            self._open_s = min(self._open_s * 2, self._limits.max_open_s)
        if self.state is BreakerState.OPEN and now_s < self.open_until_s:
            return
        self.open_until_s = now_s + self._open_s
        self._move(BreakerState.OPEN)

    def abandoned(self, now_s: float) -> None:
        """The request ended without a verdict (its client left); a probe slot is free again."""
        if self.state is BreakerState.PROBING:
            self.open_until_s = now_s
            self._move(BreakerState.OPEN)

    def _move(self, to: BreakerState) -> None:
        assert to in _MOVES[self.state], f"breaker moves from {self.state} to {to}"  # noqa: S101 (our own invariant)
        self.state = to
        self.closed = to is BreakerState.CLOSED
