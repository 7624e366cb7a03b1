"""The last events of an engine's life, numbered and bounded: start, load, drains, faults, and ends of requests. Pure.

Served at /v1/forebay/events. A reader asks for what came after the last number it saw; when the ring has moved on, the
answer says how many are lost.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

CAPACITY = 1024


class EventLog:
    """A ring of events; `wall_s` gives their times in seconds since 1970."""

    def __init__(self, wall_s: Callable[[], float], capacity: int = CAPACITY) -> None:
        self._wall_s = wall_s
        self._ring: deque[dict[str, Any]] = deque(maxlen=capacity)
        self._count = 0

    def note(self, kind: str, **fields: Any) -> None:
        """Add an event; it gets the next number, from 1."""
        self._count += 1
        self._ring.append({"number": self._count, "time_s": round(self._wall_s(), 3), "event": kind, **fields})

    def after(self, number: int, most: int) -> dict[str, Any]:
        """Up to `most` events with higher numbers, oldest first, the last number given, and how many were lost."""
        oldest = self._count - len(self._ring) + 1
        first = max(number + 1, oldest)
        events = [event for event in self._ring if event["number"] >= first][:most]
        last = events[-1]["number"] if events else max(number, first - 1)
        return {"events": events, "last": min(last, self._count), "lost": max(0, first - number - 1)}
