"""The objects that a cluster needs besides its processes: the Service by which pods ask for names."""

from __future__ import annotations

import json
from typing import Any

from localcluster.layout import Layout


def manifest(layout: Layout) -> str:
    """The objects as one JSON list for `kubectl apply`."""
    items = [_dns_service(layout), _dns_endpoints(layout), *_dns_access()]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _dns_service(layout: Layout) -> dict[str, Any]:
    """`kube-dns` without a selector: CoreDNS is a process of the node, not a pod."""
    ports = [
        {"name": "dns", "protocol": "UDP", "port": 53},
        {"name": "dns-tcp", "protocol": "TCP", "port": 53},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
        "spec": {"clusterIP": layout.addresses.dns_service, "ports": ports},
    }


def _dns_endpoints(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns-node",
            "namespace": "kube-system",
            "labels": {
                "kubernetes.io/service-name": "kube-dns",
                "endpointslice.kubernetes.io/managed-by": "forebay-cluster",
            },
        },
        "addressType": "IPv4",
        "ports": [
            {"name": "dns", "protocol": "UDP", "port": 53},
            {"name": "dns-tcp", "protocol": "TCP", "port": 53},
        ],
        "endpoints": [{"addresses": [layout.addresses.node], "conditions": {"ready": True}}],
    }


def _dns_access() -> list[dict[str, Any]]:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "forebay-cluster:coredns"},
        "rules": [
            {"apiGroups": [""], "resources": ["services", "namespaces"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "forebay-cluster:coredns"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "forebay-cluster:coredns"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:coredns"}],
    }
    return [role, binding]
