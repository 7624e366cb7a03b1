"""Notices that somebody else undoes what we apply, so that two writers do not spin.

A healthy rollout applies children in a few passes a minute. Many more than that means that another controller, or a
second operator, keeps changing the same objects; the key then backs off like a failing one until it is left alone.
Used by `worker` after each pass; remembers only keys that applied something within the window.
"""

from collections import deque
from typing import Final

from forebay.operator.queue import Key

WINDOW_S: Final = 60.0
MAX_APPLYING_PASSES: Final = 30


class Contention:
    """Counts passes that applied children, by key."""

    def __init__(self) -> None:
        self._applied: dict[Key, deque[float]] = {}

    def note(self, key: Key, now_s: float, *, applied: bool) -> bool:
        """Note one pass; true when this key has applied so often within the window that somebody must be undoing it."""
        times = self._applied.setdefault(key, deque(maxlen=MAX_APPLYING_PASSES + 1))
        if applied:
            times.append(now_s)
        while times and times[0] <= now_s - WINDOW_S:
            times.popleft()
        if not times:
            del self._applied[key]
        return applied and len(times) > MAX_APPLYING_PASSES
