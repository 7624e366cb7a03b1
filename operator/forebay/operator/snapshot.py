"""What one pass of the operator sees: frozen values, read once by `observe`, never changed afterwards.

Objects are plain JSON mappings as the Kubernetes API returns them. `None` where an object was asked for by name means
that it does not exist. A snapshot holds everything that `reconcile` may look at, so the same snapshot and the same
`now` always give the same plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from forebay.contract.wire import RouterReport

Json: TypeAlias = Mapping[str, Any]
"""A JSON object as Kubernetes returns it; treated as read-only everywhere."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Operator settings that rendering needs; the same for every object.

    `hf_endpoint` is handed to init containers that fetch from a Hugging Face hub (None: the client's default);
    `metrics_namespace` names the namespace whose pods may scrape engines and routers (None: nobody may).
    """

    router_image: str
    operator_namespace: str
    hf_endpoint: str | None = None
    metrics_namespace: str | None = None


@dataclass(frozen=True, slots=True)
class RouterObservation:
    """One router pod's own report, or why there is none.

    `pod` is the pod's name; `age_s` is the time since the report was read, 0.0 for one read in this pass.
    """

    pod: str
    report: RouterReport | None
    age_s: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class DeploymentSnapshot:
    """One ModelDeployment with all that it refers to and owns.

    - `children`: objects with the label `forebay.dev/deployment=NAME` in the namespace, of the kinds in
      `desired.kinds.CHILD_KINDS` (Deployment, Service, ConfigMap, ServiceAccount, Role, RoleBinding,
      PodDisruptionBudget, NetworkPolicy, ControllerRevision); each carries `apiVersion` and `kind`.
    - `pods`: pods with the same label, engines and routers.
    - `events`: core/v1 Events of type Warning that regard one of `pods`; read only while a pod is not ready.
    - `actions`: RolloutActions of the namespace that were judged already.
    - `routers`: one observation for each router pod that has an IP and is not terminating.
    """

    namespace: str
    name: str
    deployment: Json | None
    model: Json | None
    gpu_class: Json | None
    release: Json | None
    children: tuple[Json, ...]
    pods: tuple[Json, ...]
    events: tuple[Json, ...]
    routers: tuple[RouterObservation, ...]
    settings: Settings
    actions: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """One Model."""

    namespace: str
    name: str
    model: Json | None


@dataclass(frozen=True, slots=True)
class GPUClassSnapshot:
    """One GPUClass, all nodes, and the pods that hold its resource.

    `pods` are the cluster's pods that are bound to a node and not finished; needed only when the class counts an
    extended resource, empty otherwise.
    """

    name: str
    gpu_class: Json | None
    nodes: tuple[Json, ...]
    pods: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class ReleaseSnapshot:
    """One EngineRelease."""

    name: str
    release: Json | None


@dataclass(frozen=True, slots=True)
class ActionSnapshot:
    """One RolloutAction and the Rollout that it names."""

    namespace: str
    name: str
    action: Json | None
    rollout: Json | None
