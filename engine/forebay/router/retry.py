"""Whether a failed attempt is tried again, as a pure function, and the budget that bounds retries.

Never after the first byte went to the client. Never on 500, on a timeout or on 4xx: work may have started, or would
fail again. Retried: a connection that could not be made, an idle connection that was closed under us, 429 once, and 502
and 503 with Retry-After, by which an engine says that it has not begun. The budget protects engines from added work, so
attempts that sent nothing are free of it.
"""

import enum
from dataclasses import dataclass

MAX_RETRIES = 2
IDLE_RACE_S = 0.25
"""A reused connection lost within this time of sending was closed before the engine read the request."""
MAX_AVOID_S = 60.0
DEFAULT_AVOID_S = 1.0


class Failure(enum.Enum):
    """How an attempt ended without a usable answer."""

    CONNECT = "connect"
    RESET_REUSED = "reset_reused"
    RESET = "reset"
    BAD_RESPONSE = "bad_response"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    STALL = "stall"
    STATUS_429 = "status_429"
    STATUS_502 = "status_502"
    STATUS_503 = "status_503"


_FREE = frozenset({Failure.CONNECT})
_RETRIED = _FREE | {Failure.RESET_REUSED, Failure.STATUS_429, Failure.STATUS_502, Failure.STATUS_503}
_ONCE = frozenset({Failure.RESET_REUSED, Failure.STATUS_429})


class Verdict(enum.Enum):
    """RETRY on another endpoint, or give the client what there is."""

    RETRY = "retry"
    GIVE_UP = "give_up"


@dataclass(slots=True)
class RetryBudget:
    """A token bucket: each request adds `ratio` tokens up to `burst`, each retry that cost an engine work takes one."""

    ratio: float = 0.1
    burst: float = 10.0
    tokens: float = 10.0

    def request(self) -> None:
        """A new request came in."""
        self.tokens = min(self.tokens + self.ratio, self.burst)

    def allows(self, failure: Failure) -> bool:
        """Whether a retry after this failure fits the budget."""
        return failure in _FREE or self.tokens >= 1.0

    def spend(self, failure: Failure) -> None:
        """A retry after this failure goes out."""
        if failure not in _FREE:
            self.tokens -= 1.0


def classify_status(status: int, *, not_begun: bool) -> Failure | None:
    """The failure that a status stands for before the answer is passed on; None when it is an answer to keep.

    `not_begun`: the answer has a Retry-After. A 503 without one comes from an engine that broke while it worked, and
    the same request could break the next.
    """
    if status == 429:
        return Failure.STATUS_429
    return {502: Failure.STATUS_502, 503: Failure.STATUS_503}.get(status) if not_begun else None


def classify_loss(*, reused: bool, elapsed_s: float) -> Failure:
    """The failure of a connection lost before any byte of the answer."""
    return Failure.RESET_REUSED if reused and elapsed_s < IDLE_RACE_S else Failure.RESET


def decide(failure: Failure, history: tuple[Failure, ...], *, bytes_sent: bool, budget: RetryBudget) -> Verdict:
    """Judge an attempt; `history` holds the failures of earlier attempts of the same request, oldest first."""
    if bytes_sent or failure not in _RETRIED or len(history) >= MAX_RETRIES:
        return Verdict.GIVE_UP
    if failure in _ONCE and failure in history:
        return Verdict.GIVE_UP
    return Verdict.RETRY if budget.allows(failure) else Verdict.GIVE_UP


def avoid_s(failure: Failure, retry_after_s: float | None) -> float:
    """Seconds for which other endpoints are preferred after this failure; Retry-After is honoured up to a minute."""
    match failure:
        case Failure.CONNECT | Failure.STATUS_502 | Failure.STATUS_503:
            return min(DEFAULT_AVOID_S if retry_after_s is None else retry_after_s, MAX_AVOID_S)
        case Failure.STATUS_429:
            return min(retry_after_s or 0.0, MAX_AVOID_S)
        case _:
            return 0.0
