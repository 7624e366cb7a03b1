"""What a process does with SIGTERM before it can drain: it ends.

Process 1 of a container ignores SIGTERM until it has a handler, so a pod that is deleted while its program still starts
would wait out its whole grace period. Every `__main__` calls this first, before imports that take time; the servers put
their draining handlers in its place.
"""

import signal
import sys
from types import FrameType
from typing import NoReturn

EXIT_TERMINATED = 128 + signal.SIGTERM


def end_on_sigterm() -> None:
    """End with exit code 143 at the next SIGTERM, until another handler is set."""
    signal.signal(signal.SIGTERM, _end)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(EXIT_TERMINATED)
