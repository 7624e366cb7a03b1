"""The kinds of objects that a ModelDeployment owns; `observe` lists each of them, `main` watches each of them."""

from typing import Final, NamedTuple


class Kind(NamedTuple):
    """A Kubernetes kind by apiVersion and name."""

    api_version: str
    kind: str


DEPLOYMENT: Final = Kind("apps/v1", "Deployment")
CONTROLLER_REVISION: Final = Kind("apps/v1", "ControllerRevision")
SERVICE: Final = Kind("v1", "Service")
CONFIG_MAP: Final = Kind("v1", "ConfigMap")
SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount")
ROLE: Final = Kind("rbac.authorization.k8s.io/v1", "Role")
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io/v1", "RoleBinding")
BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy")
ROLLOUT: Final = Kind("forebay.dev/v1alpha1", "Rollout")

CHILD_KINDS: Final = (
    CONTROLLER_REVISION,
    CONFIG_MAP,
    SERVICE_ACCOUNT,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    BUDGET,
    NETWORK_POLICY,
    DEPLOYMENT,
    ROLLOUT,
)
"""Every kind of child, in the order in which a deployment's children are listed."""
