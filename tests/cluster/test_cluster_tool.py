"""The cluster tool itself: up, resume after a crash, and down without a trace.

Uses clusters of its own in temporary state folders, so it runs beside the session's main cluster. The only
image is the tool's own pause image: nothing else has to be built.
"""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CLUSTER = Path(__file__).resolve().parents[2] / "hack" / "cluster"
PAUSE = "forebay.dev/pause:1"


@dataclass(frozen=True, slots=True)
class ToolCluster:
    """One cluster, driven by the tool's commands as a user drives it."""

    state: Path

    def tool(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a script or the shell of the cluster tool against this state folder."""
        command = [str(CLUSTER / "shell"), *argv[1:]] if argv[0] == "shell" else [sys.executable, *self.script(*argv)]
        environment = {**os.environ, "FOREBAY_CLUSTER_STATE": str(self.state)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert not check or done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done

    @staticmethod
    def script(name: str, *argv: str) -> list[str]:
        """The command line of a script of the tool."""
        return [str(CLUSTER / name), *argv]

    def kubectl(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs kubectl by the tool's shell."""
        return self.tool("shell", "kubectl", *argv, check=check)

    def apply(self, document: dict[str, Any], check: bool = True) -> subprocess.CompletedProcess[str]:
        """Applies one object."""
        path = self.state.parent / f"{self.state.name}-object.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        return self.kubectl("apply", "-f", str(path), check=check)

    def status(self) -> dict[str, Any]:
        """The tool's own report."""
        report: dict[str, Any] = json.loads(self.tool("status.py", "--json", check=False).stdout)
        return report

    def wait_running(self, pod: str, restarts: int = 0) -> None:
        """Returns once the pod's container runs and was restarted at least `restarts` times."""
        path = "{.status.phase} {.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}"

        def runs() -> bool:
            shown = self.kubectl("get", "pod", pod, f"-o=jsonpath={path}", check=False).stdout.split()
            return len(shown) == 3 and shown[0] == "Running" and int(shown[1]) >= restarts and shown[2] == "true"

        eventually(runs, 60, f"pod {pod} runs")


def pause_pod(name: str, **container: Any) -> dict[str, Any]:
    """A pod of the pause image that mounts the same image as a volume."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": PAUSE,
                    "volumeMounts": [{"name": "files", "mountPath": "/files"}],
                    **container,
                }
            ],
            "volumes": [{"name": "files", "image": {"reference": PAUSE, "pullPolicy": "IfNotPresent"}}],
        },
    }


def cgroup_folders(name: str) -> list[Path]:
    """The cluster's cgroup in every hierarchy that has it."""
    root = Path("/sys/fs/cgroup")
    return [path for path in (root / name, *(root.glob(f"*/{name}"))) if path.is_dir()]


def pids_in(name: str) -> set[int]:
    """Every process of the cluster, whoever started it."""
    files = [file for folder in cgroup_folders(name) for file in folder.rglob("cgroup.procs")]
    return {int(line) for file in files for line in file.read_text(encoding="utf-8").split()}


def kill_all(pids: set[int]) -> None:
    """`kill -9`, and wait until the kernel agrees."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    eventually(
        lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids), 10, "killed processes are gone", 0.05
    )


def processes_that_mention(text: str) -> list[str]:
    """Processes whose command line or mounts name `text`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        for file in ("cmdline", "mountinfo"):
            try:
                content = (folder / file).read_bytes()
            except OSError:
                continue
            if text.encode() in content and folder.name != str(os.getpid()):
                found.append(f"{folder.name} {file}")
    return found


def host_rules() -> str:
    """The packet filter rules of the machine's own network namespace."""
    return subprocess.run(["iptables-save"], check=True, capture_output=True, text=True).stdout


def resolve(name: str, server: str) -> str:
    """The first address that a name server gives for `name`, by one UDP question."""
    labels = b"".join(struct.pack("B", len(part)) + part.encode() for part in name.split("."))
    question = struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        client.sendto(question, (server, 53))
        answer = client.recv(512)
    assert struct.unpack(">H", answer[6:8])[0] > 0, f"{name} is unknown to {server}"
    return socket.inet_ntoa(answer[-4:])


@pytest.fixture(scope="module")
def tool_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolCluster]:
    """A running cluster with an empty state folder to begin with."""
    started = ToolCluster(tmp_path_factory.mktemp("tool") / "one")
    assert shutil.which("iptables-save"), "the tests of the cluster tool need the system packages"
    started.tool("tools.py")
    started.tool("up.py")
    yield started
    started.tool("down.py")


def test_a_built_cluster_is_up_within_a_minute_and_a_second_up_changes_nothing(tool_cluster: ToolCluster) -> None:
    before = tool_cluster.status()
    assert before["up"]
    tool_cluster.tool("up.py")
    assert tool_cluster.status()["components"] == before["components"]

    tool_cluster.tool("down.py")
    begin_s = time.monotonic()
    tool_cluster.tool("up.py")
    assert time.monotonic() - begin_s < 60
    assert tool_cluster.status()["up"]


def test_a_pod_with_an_image_volume_runs_and_its_logs_are_readable(tool_cluster: ToolCluster) -> None:
    tool_cluster.apply(pause_pod("volume"))
    tool_cluster.wait_running("volume")
    assert tool_cluster.kubectl("logs", "volume").returncode == 0


def test_service_addresses_and_names_work_from_the_machine(tool_cluster: ToolCluster) -> None:
    status = tool_cluster.status()
    address = resolve("kubernetes.default.svc.cluster.local", status["dns_address"])
    assert address == tool_cluster.kubectl("get", "service", "kubernetes", "-o=jsonpath={.spec.clusterIP}").stdout
    with socket.create_connection((address, 443), timeout=5):
        pass


def test_the_audit_log_names_who_wrote_what_and_no_reads(tool_cluster: ToolCluster) -> None:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "audited"}}
    tool_cluster.apply(config_map)
    tool_cluster.kubectl("get", "configmap", "audited")
    lines = Path(tool_cluster.status()["audit_log"]).read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    mine = [event for event in events if event.get("objectRef", {}).get("name") == "audited"]
    assert [(event["verb"], event["user"]["username"]) for event in mine] == [("create", "forebay-admin")]
    assert not {"get", "list", "watch"} & {event["verb"] for event in events}


def test_a_restricted_namespace_refuses_a_pod_without_a_security_context(tool_cluster: ToolCluster) -> None:
    tool_cluster.kubectl("create", "namespace", "strict")
    tool_cluster.kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
    pod = pause_pod("loose")
    pod["metadata"]["namespace"] = "strict"
    refused = tool_cluster.apply(pod, check=False)
    assert refused.returncode != 0
    assert "violates PodSecurity" in refused.stderr


def test_the_machines_own_network_and_kernel_settings_stay_untouched(tool_cluster: ToolCluster) -> None:
    assert tool_cluster.status()["up"]
    assert "KUBE-" not in host_rules()
    assert "CNI-" not in host_rules()
    inside = Path(f"/proc/{tool_cluster.status()['components']['kubelet']}/ns/net").readlink()
    assert inside != Path("/proc/self/ns/net").readlink()


def test_everything_killed_comes_back_with_its_objects_by_the_next_up(tool_cluster: ToolCluster) -> None:
    tool_cluster.apply(pause_pod("survivor"))
    tool_cluster.wait_running("survivor")
    kill_all(pids_in(tool_cluster.status()["cgroup"]))
    assert not tool_cluster.status()["up"]
    tool_cluster.tool("up.py")
    tool_cluster.wait_running("survivor", restarts=1)


def test_a_dead_component_is_told_and_mended_by_the_next_up(tool_cluster: ToolCluster) -> None:
    pid = tool_cluster.status()["components"]["kube-scheduler"]
    kill_all({pid})
    report = tool_cluster.status()
    assert not report["up"]
    assert report["components"]["kube-scheduler"] is None
    tool_cluster.tool("up.py")
    assert tool_cluster.status()["up"]


@pytest.mark.parametrize("killed_first", [(), ("containerd", "kubelet"), ("holder", "etcd", "kube-apiserver")])
def test_down_leaves_nothing_behind_and_other_clusters_alone(tmp_path: Path, killed_first: tuple[str, ...]) -> None:
    other, cluster = ToolCluster(tmp_path / "other"), ToolCluster(tmp_path / "gone")
    try:
        cluster.tool("up.py")
        other.tool("up.py")
        cluster.apply(pause_pod("left"))
        cluster.wait_running("left")
        before = cluster.status()
        kill_all({before["components"][name] for name in killed_first})
        cluster.tool("down.py")

        assert not any(Path(f"/proc/{pid}/exe").exists() for pid in before["components"].values())
        assert processes_that_mention(str(cluster.state)) == []
        assert cgroup_folders(before["cgroup"]) == []
        assert not Path(f"/sys/class/net/{before['link']}").exists()
        assert not cluster.state.exists()
        assert before["pod_range"].split("/")[0] not in host_rules()
        assert "KUBE-" not in host_rules()

        other.apply(pause_pod("unharmed"))
        other.wait_running("unharmed")
    finally:
        cluster.tool("down.py")
        other.tool("down.py")


def test_down_refuses_a_folder_that_is_no_cluster(tmp_path: Path) -> None:
    precious = tmp_path / "state" / "precious"
    precious.parent.mkdir()
    precious.touch()
    refused = ToolCluster(precious.parent).tool("down.py", check=False)
    assert refused.returncode != 0
    assert "not a cluster's state folder" in refused.stderr
    assert precious.exists()
