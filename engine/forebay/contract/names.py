"""Names that more than one process relies on: API group, labels, ports, paths, headers.

Renaming one is a breaking change: pods of two releases, the chart and user dashboards read them.
"""

from typing import Final

GROUP: Final = "forebay.dev"
API_VERSION: Final = "v1alpha1"

# Labels on every child object and pod.
LABEL_DEPLOYMENT: Final = "forebay.dev/deployment"
LABEL_DEPLOYMENT_UID: Final = "forebay.dev/deployment-uid"
LABEL_ROLE: Final = "forebay.dev/role"
LABEL_REVISION: Final = "forebay.dev/revision"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "forebay-operator"
ROLE_ENGINE: Final = "engine"
ROLE_ROUTER: Final = "router"
ROLE_ROLLOUT: Final = "rollout"

# Server-side apply field managers, one for each concern.
MANAGER_WORKLOAD: Final = "forebay/workload"
MANAGER_ROUTE: Final = "forebay/route"
MANAGER_STATUS: Final = "forebay/status"

# Ports.
PORT_ENGINE: Final = 8000
PORT_ROUTER: Final = 8080
PORT_ROUTER_ADMIN: Final = 8081
PORT_SERVICE: Final = 80
PORT_OPERATOR_HEALTH: Final = 8080
PORT_OPERATOR_METRICS: Final = 8081

# HTTP paths served by engines and routers.
PATH_HEALTH: Final = "/health"
PATH_READY: Final = "/ready"
PATH_METRICS: Final = "/metrics"
PATH_CONFIG: Final = "/v1/forebay/config"
PATH_LOAD: Final = "/v1/forebay/load"
PATH_DRAIN: Final = "/v1/forebay/drain"
PATH_EVENTS: Final = "/v1/forebay/events"
PATH_ROUTES: Final = "/v1/forebay/routes"

# Headers.
HEADER_REQUEST_ID: Final = "x-request-id"
HEADER_REVISION: Final = "x-forebay-revision"
HEADER_ENDPOINT: Final = "x-forebay-endpoint"
HEADER_SESSION: Final = "x-forebay-session"

METRIC_PREFIX: Final = "forebay_"

ROUTES_KEY: Final = "routes.json"
"""Key of the routes document in the routes ConfigMap."""

RELEASE_FILE: Final = "/etc/forebay/release.json"
"""Release defaults inside the engine image."""


def engine_name(deployment: str, revision: str) -> str:
    """Name of the engine Deployment, headless Service and ConfigMap of one revision."""
    return f"{deployment}-engine-{revision}"


def router_name(deployment: str) -> str:
    """Name of the router Deployment and its ServiceAccount, Role and RoleBinding."""
    return f"{deployment}-router"


def routes_name(deployment: str) -> str:
    """Name of the ConfigMap that holds the routes document."""
    return f"{deployment}-routes"


MAX_DEPLOYMENT_NAME: Final = 40
"""Longest ModelDeployment name, so that every child and pod name stays within 63 characters."""
