"""The command line of every component, and the order in which they start."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from localcluster.layout import CLUSTER_DOMAIN, NODE_NAME, Layout
from localcluster.toolchain import program_folder


@dataclass(frozen=True)
class Component:
    """A process of the cluster: its name (log, pid file), its command and its extra environment."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def storage(layout: Layout) -> tuple[Component, ...]:
    """What needs nothing else: etcd and containerd."""
    etcd = (
        str(program_folder("etcd") / "etcd"),
        f"--name={NODE_NAME}",
        f"--data-dir={layout.state / 'etcd'}",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        "--log-level=warn",
    )
    binaries = program_folder("containerd")
    containerd = (
        "/usr/bin/env",
        f"PATH={binaries}:/usr/sbin:/usr/bin:/sbin:/bin",
        str(binaries / "containerd"),
        f"--config={layout.config('containerd.toml')}",
    )
    return Component("etcd", etcd), Component("containerd", containerd)


def apiserver(layout: Layout) -> Component:
    """The apiserver, which waits for etcd by itself."""
    addresses = layout.addresses
    flags = {
        "etcd-servers": "http://127.0.0.1:2379",
        "advertise-address": addresses.node,
        "bind-address": addresses.node,
        "secure-port": "6443",
        "service-cluster-ip-range": addresses.services,
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "client-ca-file": str(layout.pki("ca.crt")),
        "tls-cert-file": str(layout.pki("apiserver.crt")),
        "tls-private-key-file": str(layout.pki("apiserver.key")),
        "kubelet-certificate-authority": str(layout.pki("ca.crt")),
        "kubelet-client-certificate": str(layout.pki("apiserver-kubelet-client.crt")),
        "kubelet-client-key": str(layout.pki("apiserver-kubelet-client.key")),
        "kubelet-preferred-address-types": "InternalIP",
        "service-account-issuer": f"https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
        "service-account-key-file": str(layout.pki("service-account.key")),
        "service-account-signing-key-file": str(layout.pki("service-account.key")),
        "audit-policy-file": str(layout.config("audit-policy.json")),
        "audit-log-path": str(layout.audit_log),
    }
    return _kubernetes("kube-apiserver", flags)


def controllers(layout: Layout) -> tuple[Component, ...]:
    """What needs an apiserver that answers."""
    addresses = layout.addresses
    return (
        _kubernetes(
            "kube-controller-manager",
            {
                **_client(layout, "controller-manager"),
                "service-account-private-key-file": str(layout.pki("service-account.key")),
                "root-ca-file": str(layout.pki("ca.crt")),
                "cluster-signing-cert-file": str(layout.pki("ca.crt")),
                "cluster-signing-key-file": str(layout.pki("ca.key")),
                "use-service-account-credentials": "true",
                "cluster-cidr": addresses.pods,
                "service-cluster-ip-range": addresses.services,
            },
        ),
        _kubernetes("kube-scheduler", _client(layout, "scheduler")),
        _kubernetes(
            "kubelet",
            {
                "config": str(layout.config("kubelet.json")),
                "kubeconfig": str(layout.pki("kubelet.kubeconfig")),
                "root-dir": str(layout.state / "kubelet"),
                "cert-dir": str(layout.state / "kubelet" / "pki"),
                "hostname-override": NODE_NAME,
                "node-ip": addresses.node,
            },
        ),
        _kubernetes("kube-proxy", {"config": str(layout.config("proxy.json"))}),
        Component("coredns", (str(program_folder("coredns") / "coredns"), "-conf", str(layout.config("Corefile")))),
    )


def names(layout: Layout) -> tuple[str, ...]:
    """The components that must live for the cluster to be up, in starting order."""
    every = (*storage(layout), apiserver(layout), *controllers(layout))
    return tuple(component.name for component in every)


def _client(layout: Layout, identity: str) -> dict[str, str]:
    kubeconfig = str(layout.pki(f"{identity}.kubeconfig"))
    return {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
    }


def _kubernetes(name: str, flags: dict[str, str]) -> Component:
    program: Path = program_folder("kubernetes") / name
    return Component(name, (str(program), *(f"--{flag}={value}" for flag, value in flags.items())))
