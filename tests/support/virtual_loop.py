"""An asyncio loop whose clock jumps to the next timer when nothing else is left to do.

Simulations of minutes take milliseconds, and the same seed gives the same order of everything. There is no real I/O
on such a loop; waiting for something that no timer will bring is an error instead of a hang.
"""

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Everything waits and no timer is set."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module's text."""

    def __init__(self) -> None:
        self._virtual_s = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._virtual_s

    def jump(self, seconds: float) -> None:
        """Move the clock forward."""
        self._virtual_s += seconds


class VirtualClock:
    """`Clock` on a virtual loop; the wall clock starts at a fixed date."""

    def __init__(self, loop: VirtualLoop, start_s: float = 1_800_000_000.0) -> None:
        self._loop = loop
        self._start_s = start_s

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return self._loop.time()

    def wall_s(self) -> float:
        """See `Clock`."""
        return self._start_s + self._loop.time()


class _Jumping(selectors.BaseSelector):
    """A selector on which nothing ever becomes ready; waiting moves the clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._inner = selectors.SelectSelector()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("everything waits and no timer is set")
        if timeout > 0:
            self._loop.jump(timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def close(self) -> None:
        self._inner.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()


def run_virtual(main: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """Run `main` on `loop`, then cancel what is left and close the loop."""
    try:
        return loop.run_until_complete(main)
    finally:
        rest = asyncio.all_tasks(loop)
        for task in rest:
            task.cancel()
        if rest:
            loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        loop.close()
