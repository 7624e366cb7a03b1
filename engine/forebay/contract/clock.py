"""The clock protocol: time is passed in, so that pure code can be replayed and tests never sleep."""

from typing import Protocol


class Clock(Protocol):
    """A source of time. `monotonic_s` never goes back; `wall_s` is seconds since the epoch."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back."""

    def wall_s(self) -> float:
        """Seconds since 1970-01-01 UTC."""
