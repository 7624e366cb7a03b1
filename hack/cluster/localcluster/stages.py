"""One line for each stage of a command: what it did and how many seconds it took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stage(title: str) -> Iterator[None]:
    """Times the block and prints `title` with its seconds, also when the block fails."""
    start_s = time.monotonic()
    outcome = "failed"
    try:
        yield
        outcome = "done"
    finally:
        print(f"{title}: {outcome} in {time.monotonic() - start_s:.1f} s", file=sys.stderr, flush=True)
