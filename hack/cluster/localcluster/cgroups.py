"""The cgroup that holds every process of a cluster, and the killing of all that is in it.

The components start inside `<cgroup>/system` of one hierarchy, so shims and whatever they start are
found there even when nobody recorded their pid; the kubelet puts pods under `<cgroup>/kubepods`. Works
with cgroup v2, and with v1 where each controller is a hierarchy of its own.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
KILL_DEADLINE_S = 20.0


def is_unified() -> bool:
    """True for cgroup v2 alone."""
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """The mount points of every hierarchy a process is in."""
    if is_unified():
        return [ROOT]
    return sorted(path for path in ROOT.iterdir() if path.is_dir() and not path.is_symlink())


def create(name: str) -> Path:
    """Makes the cgroup in every hierarchy; returns the `cgroup.procs` file that components join by."""
    for hierarchy in hierarchies():
        folder = hierarchy / name
        folder.mkdir(exist_ok=True)
        if (hierarchy / "cpuset.cpus").exists() and not is_unified():
            for setting in ("cpuset.cpus", "cpuset.mems"):
                (folder / setting).write_text((hierarchy / setting).read_text(encoding="utf-8"), encoding="utf-8")
    if is_unified():
        _delegate(ROOT)
        _delegate(ROOT / name)
    members = (ROOT if is_unified() else ROOT / "pids") / name / "system"
    members.mkdir(exist_ok=True)
    return members / "cgroup.procs"


def _delegate(folder: Path) -> None:
    controllers = (folder / "cgroup.controllers").read_text(encoding="utf-8").split()
    wanted = " ".join(f"+{controller}" for controller in controllers)
    (folder / "cgroup.subtree_control").write_text(wanted, encoding="utf-8")


def named(prefix: str) -> set[str]:
    """The names of the top-level cgroups that begin with `prefix`, in any hierarchy."""
    return {path.name for hierarchy in hierarchies() for path in hierarchy.glob(f"{prefix}*") if path.is_dir()}


def members(name: str) -> set[int]:
    """The pids of every process in the cgroup or below it, in any hierarchy."""
    pids: set[int] = set()
    for hierarchy in hierarchies():
        for folder, _, _ in os.walk(hierarchy / name):
            try:
                pids.update(int(line) for line in (Path(folder) / "cgroup.procs").read_text().split())
            except (FileNotFoundError, OSError):  # a pod's cgroup went away between the listing and the reading
                continue
    return pids - {os.getpid()}


def kill_members(name: str) -> None:
    """Kills until nothing is left. Raises TimeoutError naming the pids that do not die."""
    deadline_s = time.monotonic() + KILL_DEADLINE_S
    while pids := members(name):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"processes of {name} do not end: {sorted(pids)}")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def remove(name: str) -> None:
    """Removes the empty cgroup from every hierarchy. Raises OSError when one does not get free in time."""
    deadline_s = time.monotonic() + KILL_DEADLINE_S
    for hierarchy in hierarchies():
        for folder, _, _ in os.walk(hierarchy / name, topdown=False):
            _remove_when_free(Path(folder), deadline_s)


def _remove_when_free(folder: Path, deadline_s: float) -> None:
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # a killed process leaves its cgroup busy for a moment
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
        else:
            return
