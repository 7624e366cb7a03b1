"""Where everything of one cluster is, derived from its state folder.

Names that live outside the folder (cgroup, network link) carry a hash of the folder's path, and the
address block is chosen once and written down, so two clusters on one machine never meet. Values only:
nothing here changes the machine.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
NODE_NAME = "forebay"
CLUSTER_DOMAIN = "cluster.local"
CGROUP_PREFIX = "forebay-"
BLOCKS = tuple(f"10.{octet}" for octet in range(96, 224))


@dataclass(frozen=True)
class Addresses:
    """The cluster's /16 block, cut into its four uses. Every field is an address or range in text."""

    block: str

    @property
    def whole(self) -> str:
        """The range that the host routes into the cluster's network namespace."""
        return f"{self.block}.0.0/16"

    @property
    def pods(self) -> str:
        """The range of pod addresses."""
        return f"{self.block}.0.0/17"

    @property
    def services(self) -> str:
        """The range of ClusterIPs."""
        return f"{self.block}.128.0/18"

    @property
    def apiserver_service(self) -> str:
        """ClusterIP of the `kubernetes` Service: the first of the range, by the apiserver's rule."""
        return f"{self.block}.128.1"

    @property
    def dns_service(self) -> str:
        """ClusterIP of `kube-dns`."""
        return f"{self.block}.128.10"

    @property
    def host(self) -> str:
        """The machine's end of the link; pods reach the machine's own servers by it."""
        return f"{self.block}.255.1"

    @property
    def node(self) -> str:
        """The cluster's end of the link, which is the node's address and the apiserver's."""
        return f"{self.block}.255.2"


@dataclass(frozen=True)
class Layout:
    """Paths and names of the cluster whose state folder is `state` (absolute, links resolved)."""

    state: Path

    @cached_property
    def identity(self) -> str:
        """Eight hexadecimal digits that tell this cluster from others on the machine."""
        return hashlib.sha256(str(self.state).encode()).hexdigest()[:8]

    @property
    def link(self) -> str:
        """Name of the host's end of the link (at most 15 characters)."""
        return f"fb{self.identity}"

    @property
    def cgroup(self) -> str:
        """Name of the cgroup, in every hierarchy, that holds every process of the cluster."""
        return f"{CGROUP_PREFIX}{self.identity}"

    @property
    def lock(self) -> Path:
        """The file that `up` and `down` lock; beside the folder because `down` deletes the folder."""
        return self.state.with_name(f"{self.state.name}.lock")

    @property
    def block_file(self) -> Path:
        """Records the address block; also the mark by which `down` knows a state folder as ours."""
        return self.state / "cluster.json"

    @property
    def admin_kubeconfig(self) -> Path:
        """The cluster administrator's kubeconfig."""
        return self.state / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        """One JSON event a line for each write request: who, which verb, which object."""
        return self.state / "audit.log"

    @property
    def containerd_socket(self) -> Path:
        """containerd's gRPC socket, reachable from the host."""
        return self.state / "containerd.sock"

    @property
    def programs(self) -> Path:
        """kubectl, helm and ctr for `shell`."""
        return self.state / "bin"

    def pki(self, name: str) -> Path:
        """Path of the key, certificate or kubeconfig called `name`."""
        return self.state / "pki" / name

    def config(self, name: str) -> Path:
        """Path of the component configuration file called `name`."""
        return self.state / "config" / name

    def log(self, component: str) -> Path:
        """The component's log; appended to over restarts."""
        return self.state / "logs" / f"{component}.log"

    def pid_file(self, component: str) -> Path:
        """The component's recorded process."""
        return self.state / "pids" / component

    @cached_property
    def addresses(self) -> Addresses:
        """The recorded addresses. Raises FileNotFoundError before the first `up`."""
        return Addresses(json.loads(self.block_file.read_text(encoding="utf-8"))["block"])


def current_layout() -> Layout:
    """The layout of `FOREBAY_CLUSTER_STATE`, else of `.cache/cluster` in this checkout."""
    configured = os.environ.get("FOREBAY_CLUSTER_STATE")
    return Layout((Path(configured) if configured else CHECKOUT / ".cache" / "cluster").resolve())


def choose_block(identity: str, taken: list[ipaddress.IPv4Network]) -> str:
    """The first block, counted from the one that `identity` hashes to, that overlaps no `taken` range.

    Raises RuntimeError when every block is taken.
    """
    start = int(identity, 16) % len(BLOCKS)
    for block in BLOCKS[start:] + BLOCKS[:start]:
        candidate = ipaddress.IPv4Network(f"{block}.0.0/16")
        if not any(candidate.overlaps(network) for network in taken):
            return block
    raise RuntimeError("no free 10.x/16 block on this machine for another cluster")
