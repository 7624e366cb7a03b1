"""The cluster's own certificate authority, every certificate, and the kubeconfigs made of them.

Made by the `openssl` program on the first `up` and kept in the state folder, because the objects in
etcd (service account tokens, the root CA of each namespace) belong to them.
"""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from localcluster.layout import CLUSTER_DOMAIN, NODE_NAME, Layout

NEW_KEY = ("-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3650")


@dataclass(frozen=True)
class Identity:
    """A certificate's file name, its user, and its groups (the organisations)."""

    name: str
    user: str
    groups: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """The distinguished name in openssl's notation."""
        return "".join(f"/O={group}" for group in self.groups) + f"/CN={self.user}"


CLIENTS = (
    Identity("admin", "forebay-admin", ("system:masters",)),
    Identity("controller-manager", "system:kube-controller-manager"),
    Identity("scheduler", "system:kube-scheduler"),
    Identity("kubelet", f"system:node:{NODE_NAME}", ("system:nodes",)),
    Identity("proxy", "system:kube-proxy"),
    Identity("coredns", "system:coredns"),
)
APISERVER_TO_KUBELET = Identity("apiserver-kubelet-client", "kube-apiserver", ("system:masters",))


def apiserver_url(layout: Layout) -> str:
    """The address by which every client, inside and on the host, reaches the apiserver."""
    return f"https://{layout.addresses.node}:6443"


def create_all(layout: Layout) -> None:
    """Makes what is missing; a complete set costs nothing."""
    done = layout.pki("complete")
    if done.exists():
        return
    done.parent.mkdir(parents=True, exist_ok=True)
    _openssl("req", *NEW_KEY, "-x509", "-subj", "/CN=forebay-cluster-ca", *_outputs(layout, "ca"))
    addresses = layout.addresses
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{CLUSTER_DOMAIN}"]
    serving = [f"DNS:{name}" for name in [*names, "localhost", NODE_NAME]]
    serving += [f"IP:{ip}" for ip in (addresses.apiserver_service, addresses.node, "127.0.0.1")]
    _issue(layout, Identity("apiserver", "kube-apiserver"), usage="serverAuth", alternatives=serving)
    node = [f"DNS:{NODE_NAME}", f"IP:{addresses.node}"]
    _issue(layout, Identity("kubelet-serving", f"system:node:{NODE_NAME}"), usage="serverAuth", alternatives=node)
    for client in (*CLIENTS, APISERVER_TO_KUBELET):
        _issue(layout, client, usage="clientAuth")
    _openssl("genrsa", "-out", str(layout.pki("service-account.key")), "2048")
    for client in CLIENTS:
        _write_kubeconfig(layout, client)
    layout.pki("admin.kubeconfig").replace(layout.admin_kubeconfig)
    done.touch()


def _issue(layout: Layout, identity: Identity, *, usage: str, alternatives: list[str] | None = None) -> None:
    extensions = ["-addext", f"extendedKeyUsage={usage}", "-addext", "basicConstraints=critical,CA:FALSE"]
    if alternatives:
        extensions += ["-addext", f"subjectAltName={','.join(alternatives)}"]
    authority = ["-x509", "-CA", str(layout.pki("ca.crt")), "-CAkey", str(layout.pki("ca.key"))]
    outputs = _outputs(layout, identity.name)
    _openssl("req", *NEW_KEY, "-subj", identity.subject, *authority, *extensions, *outputs)


def _outputs(layout: Layout, name: str) -> list[str]:
    return ["-keyout", str(layout.pki(f"{name}.key")), "-out", str(layout.pki(f"{name}.crt"))]


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def _write_kubeconfig(layout: Layout, client: Identity) -> None:
    """Writes the client's kubeconfig, certificates inlined: it may be copied elsewhere."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "forebay",
        "clusters": [
            {
                "name": "forebay",
                "cluster": {
                    "server": apiserver_url(layout),
                    "certificate-authority-data": _base64(layout.pki("ca.crt")),
                },
            }
        ],
        "users": [
            {
                "name": client.user,
                "user": {
                    "client-certificate-data": _base64(layout.pki(f"{client.name}.crt")),
                    "client-key-data": _base64(layout.pki(f"{client.name}.key")),
                },
            }
        ],
        "contexts": [{"name": "forebay", "context": {"cluster": "forebay", "user": client.user}}],
    }
    target = layout.pki(f"{client.name}.kubeconfig")
    target.touch(mode=0o600)
    target.write_text(json.dumps(kubeconfig, indent=1), encoding="utf-8")


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
