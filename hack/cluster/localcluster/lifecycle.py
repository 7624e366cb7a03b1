"""Brings a cluster up, takes it down, and tells how it is.

`up` is idempotent: nothing when every component lives, else everything that is left of an earlier run is
killed and the cluster starts from its state folder as a machine does after a reboot. `down` kills,
unlinks and deletes; it needs no component to be alive.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from localcluster import addons, certificates, cgroups, components, configs, hostfolders, network, ociarchive, processes
from localcluster.components import Component
from localcluster.imagestore import ctr, import_archives
from localcluster.layout import NODE_NAME, Layout, choose_block
from localcluster.shellfiles import write_shell_files
from localcluster.stages import stage
from localcluster.toolchain import program_folder

START_DEADLINE_S = 90.0


@contextmanager
def exclusive(layout: Layout) -> Iterator[None]:
    """Holds the cluster's lock, so that two commands on one state folder take turns."""
    layout.lock.parent.mkdir(parents=True, exist_ok=True)
    with layout.lock.open("w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def living(layout: Layout) -> dict[str, int | None]:
    """The pid of each component, None for one that does not run."""
    if not layout.block_file.exists():
        return {}
    names = (processes.HOLDER, *components.names(layout))
    return {name: processes.recorded_pid(layout, name) for name in names}


def is_up(layout: Layout) -> bool:
    """True when every component lives and the apiserver says that it is ready."""
    pids = living(layout)
    return bool(pids) and None not in pids.values() and _apiserver_ready(layout)


def up(layout: Layout) -> None:
    """Starts the cluster and returns when its node takes pods. The tools must be built."""
    with exclusive(layout):
        if is_up(layout):
            return
        with stage("clear what an earlier run left"):
            _stop(layout)
        with stage("certificates and configuration"):
            _prepare(layout)
        with stage("network namespace"):
            holder = processes.start_holder(layout, program_folder("pause") / "pause")
            network.connect(layout, holder)
        with stage("etcd, containerd, kube-apiserver"):
            _start(layout, *components.storage(layout), components.apiserver(layout))
            _wait(layout, "kube-apiserver", lambda: _apiserver_ready(layout))
            _wait(layout, "containerd", lambda: _succeeds(lambda: ctr(layout, "version")))
        with stage("pause image"):
            archive = layout.state / "pause.tar"
            ociarchive.write_pause_image(program_folder("pause") / "pause", archive)
            import_archives(layout, [archive])
        with stage("controllers, kubelet, kube-proxy, CoreDNS"):
            _start(layout, *components.controllers(layout))
            _apply(layout, addons.manifest(layout))
            _wait(layout, "coredns", lambda: _answers(f"http://{layout.addresses.node}:10053/ready"))
        with stage("node ready"):
            _wait(layout, "kubelet", lambda: _node_ready(layout))
            _wait(layout, "kube-controller-manager", lambda: _default_account_exists(layout))


def down(layout: Layout) -> None:
    """Ends every process of the cluster and deletes its link, cgroups and state folder.

    Raises ValueError when the folder holds something that is not a cluster's state.
    """
    with exclusive(layout):
        if layout.state.exists() and any(layout.state.iterdir()) and not layout.block_file.exists():
            raise ValueError(f"{layout.state} is not a cluster's state folder")
        with stage("stop"):
            _stop(layout)
        with stage("delete state"):
            if layout.state.exists():
                shutil.rmtree(layout.state)
    layout.lock.unlink(missing_ok=True)


def _stop(layout: Layout) -> None:
    """Kills by cgroup: it finds shims and containers whose parents are gone. The mounts were made in the
    mount namespace and the interfaces in the network namespace of these processes, so they end too."""
    cgroups.kill_members(layout.cgroup)
    network.disconnect(layout)
    hostfolders.release(layout)
    shutil.rmtree(layout.state / "pids", ignore_errors=True)


def _prepare(layout: Layout) -> None:
    layout.state.mkdir(parents=True, exist_ok=True)
    if not layout.block_file.exists():
        block = choose_block(layout.identity, network.ranges_in_use())
        layout.block_file.write_text(json.dumps({"block": block}), encoding="utf-8")
    certificates.create_all(layout)
    configs.write_all(layout, pause_image=ociarchive.PAUSE_IMAGE, unified_cgroups=cgroups.is_unified())
    write_shell_files(layout)


def _start(layout: Layout, *started: Component) -> None:
    for component in started:
        processes.start_component(layout, component.name, component.command, component.environment)


def _wait(layout: Layout, component: str, is_done: Callable[[], bool]) -> None:
    """Polls until done. Raises RuntimeError naming the component's log when it ends or is too slow."""
    deadline_s = time.monotonic() + START_DEADLINE_S
    while not is_done():
        alive = processes.recorded_pid(layout, component) is not None
        if not alive or time.monotonic() > deadline_s:
            what = "is not ready in time" if alive else "ended"
            tail = "\n".join(layout.log(component).read_text(errors="replace").splitlines()[-5:])
            raise RuntimeError(f"{component} {what}; see {layout.log(component)}\n{tail}")
        time.sleep(0.1)


def _succeeds(action: Callable[[], object]) -> bool:
    try:
        action()
    except (subprocess.CalledProcessError, RuntimeError, OSError):
        return False
    return True


def _answers(url: str, context: ssl.SSLContext | None = None) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _apiserver_ready(layout: Layout) -> bool:
    context = ssl.create_default_context(cafile=str(layout.pki("ca.crt")))
    return _answers(f"{certificates.apiserver_url(layout)}/readyz", context)


def _kubectl(layout: Layout, *arguments: str, stdin: str = "") -> str:
    command = [str(program_folder("kubernetes") / "kubectl"), f"--kubeconfig={layout.admin_kubeconfig}", *arguments]
    return subprocess.run(command, input=stdin, check=True, capture_output=True, text=True).stdout


def _apply(layout: Layout, manifest: str) -> None:
    _kubectl(layout, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifest)


def _node_ready(layout: Layout) -> bool:
    """True for a node that took part after this start: an old `Ready` in etcd is not believed."""
    path = "{.status.conditions[?(@.type=='Ready')].status} {.status.conditions[?(@.type=='Ready')].lastHeartbeatTime}"
    try:
        status = _kubectl(layout, "get", "node", NODE_NAME, f"-o=jsonpath={path}").split()
    except subprocess.CalledProcessError:
        return False
    started = layout.pid_file("kubelet").stat().st_mtime
    return len(status) == 2 and status[0] == "True" and _timestamp(status[1]) >= int(started)


def _timestamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _default_account_exists(layout: Layout) -> bool:
    """Pods of the default namespace are refused until its service account exists."""
    return _succeeds(lambda: _kubectl(layout, "get", "serviceaccount", "default", "--namespace=default"))
