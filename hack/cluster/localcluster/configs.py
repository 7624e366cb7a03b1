"""The configuration files of the components, as values.

JSON is YAML, so every Kubernetes configuration is a dictionary here. `write_all` is called by each
`up`: the files follow the code, never the state folder's age.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from localcluster.layout import CLUSTER_DOMAIN, NODE_NAME, Layout

CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin")
CNI_NETWORK = "forebay"
WRITE_VERBS = ["create", "update", "patch", "delete", "deletecollection"]


def write_all(layout: Layout, *, pause_image: str, unified_cgroups: bool) -> None:
    """Writes every component's configuration into the state folder."""
    layout.config("cni").mkdir(parents=True, exist_ok=True)
    documents: dict[str, Any] = {
        "audit-policy.json": _audit_policy(),
        "kubelet.json": _kubelet(layout, unified_cgroups=unified_cgroups),
        "proxy.json": _proxy(layout),
        "cni/10-forebay.conflist": _cni(layout),
    }
    for name, document in documents.items():
        layout.config(name).write_text(json.dumps(document, indent=1), encoding="utf-8")
    layout.config("containerd.toml").write_text(_containerd(layout, pause_image), encoding="utf-8")
    layout.config("Corefile").write_text(_corefile(layout), encoding="utf-8")
    layout.config("resolv.conf").write_text("", encoding="utf-8")


def _audit_policy() -> dict[str, Any]:
    """Who wrote what: every write with user, verb and object; no reads and no bodies."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "verbs": WRITE_VERBS}, {"level": "None"}],
    }


def _kubelet(layout: Layout, *, unified_cgroups: bool) -> dict[str, Any]:
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": layout.addresses.node,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki("ca.crt"))},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.pki("kubelet-serving.crt")),
        "tlsPrivateKeyFile": str(layout.pki("kubelet-serving.key")),
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.cgroup}",
        "clusterDomain": CLUSTER_DOMAIN,
        "clusterDNS": [layout.addresses.dns_service],
        "resolvConf": str(layout.config("resolv.conf")),
        "podLogsDir": str(layout.state / "pod-logs"),
        "volumePluginDir": str(layout.state / "volume-plugins"),
        "staticPodPath": "",
        "failSwapOn": False,
        "healthzBindAddress": "127.0.0.1",
        "serializeImagePulls": False,
        # A test machine's full disk must not evict pods or delete the images that nothing can pull again.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    }
    if not unified_cgroups:
        config["failCgroupV1"] = False
    return config


def _proxy(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": layout.addresses.pods,
        "hostnameOverride": NODE_NAME,
        "clientConnection": {"kubeconfig": str(layout.pki("proxy.kubeconfig"))},
        "bindAddress": layout.addresses.node,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        # The connection tracking limits are the machine's and read-only in a network namespace.
        "conntrack": {"maxPerCore": 0},
    }


def _cni(layout: Layout) -> dict[str, Any]:
    """One routed link per pod: no bridge, so a Service's answer always passes the node's own tables."""
    return {
        "cniVersion": "1.0.0",
        "name": CNI_NETWORK,
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(layout.state / "cni"),
                    "ranges": [[{"subnet": layout.addresses.pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True},
        ],
    }


def _containerd(layout: Layout, pause_image: str) -> str:
    folders = [folder for folder in CNI_FOLDERS if (Path(folder) / "ptp").exists()]
    runtime = "plugins.'io.containerd.cri.v1.runtime'"
    return f"""version = 3
root = '{layout.state / "containerd"}'
state = '/run/containerd'

[grpc]
address = '{layout.containerd_socket}'

[plugins.'io.containerd.cri.v1.images']
snapshotter = 'overlayfs'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{pause_image}'

[{runtime}]
# Without CAP_SYS_RESOURCE no sandbox starts otherwise.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[{runtime}.cni]
bin_dirs = {folders}
conf_dir = '{layout.config("cni")}'
[{runtime}.containerd]
default_runtime_name = 'runc'
[{runtime}.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
"""


def _corefile(layout: Layout) -> str:
    """Answers for the cluster's names only: there is no other network to ask."""
    return f"""{CLUSTER_DOMAIN}:53 in-addr.arpa:53 {{
    bind {layout.addresses.node}
    errors
    ready {layout.addresses.node}:10053
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {layout.pki("coredns.kubeconfig")}
    }}
    cache 5
}}
"""
