"""What a router may read: the EndpointSlices of its namespace and its own routes ConfigMap, nothing else."""

from typing import Any

from forebay.contract.names import ROLE_ROUTER, router_name, routes_name
from forebay.operator.desired.kinds import ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from forebay.operator.desired.metadata import Owner, child


def router_access(owner: Owner) -> tuple[dict[str, Any], ...]:
    """ServiceAccount, Role and RoleBinding of a deployment's routers."""
    name = router_name(owner.name)
    rules = [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": [routes_name(owner.name)],
            "verbs": ["get", "list", "watch"],
        },
    ]
    binding = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
    }
    return (
        child(SERVICE_ACCOUNT, owner, name, {"automountServiceAccountToken": False}, role=ROLE_ROUTER),
        child(ROLE, owner, name, {"rules": rules}, role=ROLE_ROUTER),
        child(ROLE_BINDING, owner, name, binding, role=ROLE_ROUTER),
    )
