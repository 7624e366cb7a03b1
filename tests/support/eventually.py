"""Polling with a deadline, for tests against real processes and clusters."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def eventually(look: Callable[[], Value | None], deadline_s: float, what: str, interval_s: float = 0.5) -> Value:
    """Call `look` until it returns something true, and return that; fails with `what` after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while True:
        value = look()
        if value:
            return value
        assert time.monotonic() < end, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(interval_s)
