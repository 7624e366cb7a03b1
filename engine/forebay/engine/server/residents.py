"""Resident memory of the engine's processes, read from /proc when metrics are scraped.

Holds: a process that ends while it is read counts as nothing. Called by `service.py`.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

API, CORE, COMPILER = "api", "core", "compiler"
PROCESSES: Final = (API, CORE, COMPILER)
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(proc: Path = Path("/proc")) -> dict[str, int]:
    """Resident bytes of this process and its children, by what they are; shared pages count in each."""
    found = dict.fromkeys(PROCESSES, 0)
    found[API] = _resident(proc / "self")
    for listed in (proc / "self" / "task").glob("*/children"):
        with suppress(OSError):
            for pid in listed.read_text(encoding="ascii").split():
                found[_kind(proc / pid)] += _resident(proc / pid)
    return found


def _kind(folder: Path) -> str:
    with suppress(OSError):
        if b"\0core\0" in (folder / "cmdline").read_bytes():
            return CORE
    return COMPILER


def _resident(folder: Path) -> int:
    with suppress(OSError):
        return int((folder / "statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    return 0
