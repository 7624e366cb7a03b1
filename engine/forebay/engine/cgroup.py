"""What the kernel lets this process use: memory and CPUs of its control group.

Reads cgroup v2 and v1 files below a given root, walking from the process's own group up to the root, since a limit
may sit on any ancestor. A pod's limit is here and nowhere else; the node's memory is not ours to count on.
Called by `__main__` at start.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory in bytes and whole CPUs this process may use, each with where the number came from."""

    memory_bytes: int
    memory_reason: str
    cpus: int
    cpus_reason: str


def read_machine(root: Path, affinity_cpus: int) -> Machine:
    """Read limits below `root` ("/" on a real machine); `affinity_cpus` is what the scheduler allows."""
    memory, memory_reason = _memory(root)
    quota = min((_quota(group) for group in _groups(root, "cpu")), default=math.inf)
    if quota < affinity_cpus:
        return Machine(memory, memory_reason, max(1, math.ceil(quota)), f"cgroup CPU quota of {quota:g}")
    return Machine(memory, memory_reason, max(1, affinity_cpus), "CPUs this process may run on")


def _memory(root: Path) -> tuple[int, str]:
    total = _total_memory(root)
    limits = [
        limit
        for group in _groups(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (limit := _integer(group / name)) is not None and limit < _NO_LIMIT_BYTES
    ]
    if limits and min(limits) < total:
        return min(limits), "cgroup memory limit"
    return total, "memory of the machine"


def _total_memory(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return _NO_LIMIT_BYTES


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's group and its ancestors, for v2 and for the v1 hierarchy of `controller`."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        parts = [part for part in path.split("/") if part and part != ".."]
        for mount in _mounts(root / "sys/fs/cgroup", controllers, controller):
            yield from (mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _mounts(base: Path, controllers: str, controller: str) -> list[Path]:
    """Where the hierarchy of one line of /proc/self/cgroup may be mounted; none when it is another controller's."""
    if not controllers:
        return [base, base / "unified"]
    return [base / controllers, base / controller] if controller in controllers.split(",") else []


def _quota(group: Path) -> float:
    """CPUs allowed by one group; infinity when it sets no limit."""
    fields = _text(group / "cpu.max").split()
    if len(fields) == 2 and fields[0].isdigit():
        return int(fields[0]) / int(fields[1])
    quota, period = _integer(group / "cpu.cfs_quota_us"), _integer(group / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else math.inf


def _integer(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
