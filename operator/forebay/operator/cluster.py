"""The Kubernetes API as the operator needs it: a protocol, and the closed table of resources it touches.

`kube.py` implements the protocol over HTTP, the simulation implements it in memory. Every call may raise
`ApiConflict`, `ApiDenied`, `ApiThrottled` and, where an object must exist, `ApiGone`. Objects are plain JSON
mappings that callers never change. The table also says which verbs the operator uses on each resource, and a test
compares it with the ClusterRole of the chart, so code and permissions cannot drift apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from forebay.contract.errors import ApiDenied, Bug
from forebay.contract.names import API_VERSION, GROUP

Json = Mapping[str, Any]

FOREBAY_API: Final = f"{GROUP}/{API_VERSION}"

_EVENTS: Final = ("list", "watch")
_CHILD: Final = ("create", "delete", "get", "list", "patch", "watch")


@dataclass(frozen=True, slots=True)
class Resource:
    """One REST resource: its names, its scope, and the verbs the operator uses on it and on its subresources."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool
    verbs: tuple[str, ...]
    subresource_verbs: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        group, _, version = self.api_version.rpartition("/")
        return group if version else ""


_STATUS: Final = (("status", ("patch",)),)

DEPLOYMENT_KIND: Final = "ModelDeployment"
MODEL_KIND: Final = "Model"
GPU_CLASS_KIND: Final = "GPUClass"
RELEASE_KIND: Final = "EngineRelease"
ACTION_KIND: Final = "RolloutAction"
ROLLOUT_KIND: Final = "Rollout"

OWN_RESOURCES: Final = (
    Resource(FOREBAY_API, DEPLOYMENT_KIND, "modeldeployments", True, ("get", "list", "watch"), _STATUS),
    Resource(FOREBAY_API, MODEL_KIND, "models", True, ("get", "list", "watch"), _STATUS),
    Resource(FOREBAY_API, GPU_CLASS_KIND, "gpuclasses", False, ("get", "list", "watch"), _STATUS),
    Resource(FOREBAY_API, RELEASE_KIND, "enginereleases", False, ("get", "list", "watch"), _STATUS),
    Resource(FOREBAY_API, ACTION_KIND, "rolloutactions", True, ("get", "list", "watch"), _STATUS),
)
"""The kinds a user writes. Only their status is ever written by the operator."""

CHILD_RESOURCES: Final = (
    Resource("apps/v1", "ControllerRevision", "controllerrevisions", True, _CHILD),
    Resource("apps/v1", "Deployment", "deployments", True, _CHILD),
    Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", True, _CHILD),
    Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", True, _CHILD),
    Resource("rbac.authorization.k8s.io/v1", "Role", "roles", True, _CHILD),
    Resource("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", True, _CHILD),
    Resource("v1", "ConfigMap", "configmaps", True, _CHILD),
    Resource("v1", "Service", "services", True, _CHILD),
    Resource("v1", "ServiceAccount", "serviceaccounts", True, _CHILD),
    Resource(FOREBAY_API, ROLLOUT_KIND, "rollouts", True, _CHILD, _STATUS),
)
"""What the operator creates for a ModelDeployment; found by label, watched, applied and deleted."""

OTHER_RESOURCES: Final = (
    Resource("v1", "Node", "nodes", False, _EVENTS),
    Resource("v1", "Pod", "pods", True, _EVENTS),
    Resource("v1", "Event", "events", True, ("list",)),
    Resource("events.k8s.io/v1", "Event", "events", True, ("create",)),
)

LEASE_RESOURCE: Final = Resource("coordination.k8s.io/v1", "Lease", "leases", True, ("create", "get", "update"))
"""Held in the operator's own namespace only, so its permission is a Role there."""

RESOURCES: Final = (*OWN_RESOURCES, *CHILD_RESOURCES, *OTHER_RESOURCES, LEASE_RESOURCE)

_BY_KIND: Final = {(r.api_version, r.kind): r for r in RESOURCES}


def resource_of(api_version: str, kind: str) -> Resource:
    """The table's entry of a kind; a kind outside the table is a bug of ours, not of the user."""
    resource = _BY_KIND.get((api_version, kind))
    if resource is None:
        raise Bug(f"{api_version} {kind} is not in the operator's resource table")
    return resource


class ApplyRefused(ApiDenied):
    """The API server refused the content of an object, or a namesake that is not ours stands in the way."""

    code = "apply_refused"


class Cluster(Protocol):
    """The operator's whole view of the API server. `namespace` is None for cluster-scoped objects."""

    async def get(self, api_version: str, kind: str, namespace: str | None, name: str) -> Json | None:
        """The object, or None when it does not exist."""

    async def list(
        self, api_version: str, kind: str, namespace: str | None, label_selector: str = "", field_selector: str = ""
    ) -> list[Json]:
        """Objects of a kind ordered by namespace and name; None lists all namespaces. Each carries its kind."""

    async def apply(self, obj: Json, manager: str, *, force: bool) -> Json:
        """Server-side apply of the full intent of `manager`; creates the object when it is missing."""

    async def create(self, obj: Json) -> Json:
        """Create an object; `ApiConflict` when the name is taken."""

    async def replace(self, obj: Json) -> Json:
        """Replace an object at the `resourceVersion` it carries; `ApiConflict` when it has moved on."""

    async def delete(self, api_version: str, kind: str, namespace: str | None, name: str, uid: str) -> None:
        """Delete in the background if the object still has `uid`; an object that is gone is fine."""

    async def patch_status(
        self, api_version: str, kind: str, namespace: str | None, name: str, status: Json, manager: str, version: str
    ) -> Json:
        """Server-side apply, with force, of the status of the object at exactly this resourceVersion.

        `ApiConflict` when it has moved on, so that a status never lands on a newer spec or on a namesake; `ApiGone`
        when the object does not exist.
        """
