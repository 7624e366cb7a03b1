"""Starts the cluster's components, records them, and tells whether they live.

A recorded process is its pid and its start time from `/proc`, so that a pid which the kernel gave to
somebody else is never taken for ours. The first process is the holder: it owns the network and the
mount namespace, and every other component is started inside them.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster import cgroups, hostfolders
from localcluster.layout import Layout

HOLDER = "holder"
# The kubelet insists on these kernel settings. It finds them set in its own mount namespace, so the
# machine's settings stay what they are.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def start_time(pid: int) -> str | None:
    """The start time of process `pid` in clock ticks after boot; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in {"Z", "X"} else fields[19]


def recorded_pid(layout: Layout, component: str) -> int | None:
    """The pid of a component that runs now, None when it does not."""
    try:
        pid, started = layout.pid_file(component).read_text(encoding="utf-8").split()
    except (FileNotFoundError, ValueError):
        return None
    return int(pid) if start_time(int(pid)) == started else None


def inside(holder_pid: int) -> list[str]:
    """The command prefix that enters the cluster's namespaces."""
    return ["nsenter", f"--net=/proc/{holder_pid}/ns/net", f"--mount=/proc/{holder_pid}/ns/mnt", "--"]


def run_inside(layout: Layout, *command: str) -> str:
    """Runs a short command inside the namespaces and returns what it prints.

    Raises CalledProcessError when it fails and RuntimeError when the cluster does not run.
    """
    holder = recorded_pid(layout, HOLDER)
    if holder is None:
        raise RuntimeError("the cluster does not run")
    return subprocess.run([*inside(holder), *command], check=True, stdout=subprocess.PIPE, text=True).stdout


def start_holder(layout: Layout, pause: Path) -> int:
    """Starts the process that owns the namespaces; returns its pid once they are ready for use."""
    ready = layout.state / "namespaces-ready"
    ready.unlink(missing_ok=True)
    fakes = layout.config("kernel")
    fakes.mkdir(parents=True, exist_ok=True)
    # `slave` lets later mounts of the host in and none of ours out; `make-rshared` is what volumes
    # with mount propagation need inside.
    script = ["set -e", "mount --make-rshared /", "ip link set lo up"]
    hostfolders.claim(layout)
    script += [f"mount -t tmpfs -o mode=0755 tmpfs {folder}" for folder in hostfolders.COVERED]
    for name, value in KERNEL_SETTINGS.items():
        fake = fakes / name.replace("/", ".")
        fake.write_text(f"{value}\n", encoding="utf-8")
        script.append(f'if [ -e /proc/sys/{name} ]; then mount --bind "{fake}" /proc/sys/{name}; fi')
    script += ["echo 1 > /proc/sys/net/ipv4/ip_forward", f'touch "{ready}"', f'exec "{pause}"']
    command = ["unshare", "--net", "--mount", "--propagation", "slave", "--", "sh", "-c", "\n".join(script)]
    process = _spawn(layout, HOLDER, command, {})
    deadline_s = time.monotonic() + 10
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the namespaces did not come up; see {layout.log(HOLDER)}")
        time.sleep(0.01)
    return process.pid


def start_component(layout: Layout, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Starts a component inside the namespaces and the cgroup, its output in its log."""
    holder = recorded_pid(layout, HOLDER)
    if holder is None:
        raise RuntimeError("the cluster's namespaces are gone")
    _spawn(layout, name, [*inside(holder), *command], environment)


def _spawn(
    layout: Layout, name: str, command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    join = cgroups.create(layout.cgroup)
    layout.log(name).parent.mkdir(parents=True, exist_ok=True)
    layout.pid_file(name).parent.mkdir(parents=True, exist_ok=True)
    with layout.log(name).open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=layout.state,
            env={"PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin", "HOME": "/root", **environment},
            start_new_session=True,
            preexec_fn=lambda: _join_cgroup(join),  # noqa: PLW1509  this program has one thread
        )
    layout.pid_file(name).write_text(f"{process.pid} {start_time(process.pid)}\n", encoding="utf-8")
    return process


def _join_cgroup(procs_file: Path) -> None:
    procs_file.write_text("0", encoding="utf-8")
