"""Who may reach whom: engines only from their routers, router admin ports only from the operator.

The data port of a router is open to all pods; API keys decide there. Metrics of both roles are open to one namespace
where the operator is told of one. Probes of the kubelet are not subject to network policies.
"""

from typing import Any

from forebay.contract.names import PORT_ENGINE, PORT_ROUTER, PORT_ROUTER_ADMIN, ROLE_ENGINE, ROLE_ROUTER
from forebay.operator.desired.kinds import NETWORK_POLICY
from forebay.operator.desired.metadata import Owner, child, selector
from forebay.operator.snapshot import Settings


def network_policies(owner: Owner, settings: Settings) -> tuple[dict[str, Any], ...]:
    """One policy for each role."""
    operator = _namespace(settings.operator_namespace)
    scrapers = [_namespace(settings.metrics_namespace)] if settings.metrics_namespace else []
    routers = {"podSelector": {"matchLabels": selector(owner, ROLE_ROUTER)}}
    return (
        _policy(owner, ROLE_ENGINE, [{"from": [routers, *scrapers], "ports": [_port(PORT_ENGINE)]}]),
        _policy(
            owner,
            ROLE_ROUTER,
            [
                {"ports": [_port(PORT_ROUTER)]},
                {"from": [operator, *scrapers], "ports": [_port(PORT_ROUTER_ADMIN)]},
            ],
        ),
    )


def _policy(owner: Owner, role: str, ingress: list[dict[str, Any]]) -> dict[str, Any]:
    body = {
        "spec": {
            "podSelector": {"matchLabels": selector(owner, role)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        }
    }
    return child(NETWORK_POLICY, owner, f"{owner.name}-{role}", body, role=role)


def _namespace(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def _port(number: int) -> dict[str, Any]:
    return {"port": number, "protocol": "TCP"}
