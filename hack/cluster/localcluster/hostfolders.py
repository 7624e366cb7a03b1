"""The few fixed folders of the machine that every cluster covers with a file system of its own.

A cover needs a folder to lie on. The kernel drops a cover when somebody removes that folder, in every
mount namespace, so the folders go only with the machine's last cluster. Which of them were made here is
written down, because a folder that was there before belongs to somebody else.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from localcluster import cgroups
from localcluster.layout import CGROUP_PREFIX, Layout

COVERED = ("/run/containerd", "/run/runc", "/var/lib/kubelet", "/var/lib/cni", "/var/log/containers")
LOCK = Path("/run/forebay-cluster.lock")
MADE_HERE = Path("/run/forebay-cluster.made")


@contextlib.contextmanager
def _machine_lock() -> Iterator[None]:
    with LOCK.open("w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def claim(layout: Layout) -> None:
    """Makes the folders that are missing and the cluster's cgroup, which marks the claim."""
    with _machine_lock():
        cgroups.create(layout.cgroup)
        made = set(MADE_HERE.read_text(encoding="utf-8").split()) if MADE_HERE.exists() else set()
        for folder in COVERED:
            if not Path(folder).exists():
                Path(folder).mkdir(parents=True)
                made.add(folder)
        MADE_HERE.write_text("\n".join(sorted(made)), encoding="utf-8")


def release(layout: Layout) -> None:
    """Removes the cluster's cgroup, and the folders made here when no other cluster is left."""
    with _machine_lock():
        cgroups.remove(layout.cgroup)
        if cgroups.named(CGROUP_PREFIX) or not MADE_HERE.exists():
            return
        for folder in MADE_HERE.read_text(encoding="utf-8").split():
            with contextlib.suppress(OSError):  # not empty: somebody else took it into use
                Path(folder).rmdir()
        MADE_HERE.unlink()
