"""The objects that a ModelDeployment names, read and typed, or the first problem with them.

A reference that is missing is not an error of the user: resources may be applied in any order. Called first in every
pass over a ModelDeployment; nothing else looks at raw specs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from forebay.api.enginerelease import EngineRelease
from forebay.api.gpuclass import GPUClass
from forebay.api.model import Checkpoint, Model
from forebay.api.modeldeployment import ModelDeployment
from forebay.api.shape import Shape, parse
from forebay.contract.errors import InvalidSpec
from forebay.operator.conditions import Reason
from forebay.operator.snapshot import DeploymentSnapshot, Json

Read = TypeVar("Read", bound=Shape)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a spec cannot be realised now: a reason and a message that names the field and the fix."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class References:
    """A ModelDeployment with everything it names; `checkpoint` is the model's entry for the precision."""

    deployment: ModelDeployment
    model: Model
    checkpoint: Checkpoint
    gpu_class: GPUClass
    release: EngineRelease


def read_deployment(document: Json) -> ModelDeployment | Problem:
    """The typed deployment, or what is wrong with its spec."""
    try:
        return parse(ModelDeployment, _without_status(document))
    except InvalidSpec as error:
        return Problem(Reason.INVALID_SPEC, error.message)


def find_references(deployment: ModelDeployment, snapshot: DeploymentSnapshot) -> References | Problem:
    """Everything the deployment names, or the first reference that is missing or unreadable."""
    spec = deployment.spec
    where = f"namespace {snapshot.namespace}"
    model = _read(
        Model, snapshot.model, "spec.modelRef.name", f"Model {spec.model_ref.name}", where, Reason.MODEL_NOT_FOUND
    )
    if isinstance(model, Problem):
        return model
    gpu_class = _read(
        GPUClass,
        snapshot.gpu_class,
        "spec.gpuClassRef.name",
        f"GPUClass {spec.gpu_class_ref.name}",
        "the cluster",
        Reason.GPU_CLASS_NOT_FOUND,
    )
    if isinstance(gpu_class, Problem):
        return gpu_class
    release = _read(
        EngineRelease,
        snapshot.release,
        "spec.engineReleaseRef.name",
        f"EngineRelease {spec.engine_release_ref.name}",
        "the cluster",
        Reason.ENGINE_RELEASE_NOT_FOUND,
    )
    if isinstance(release, Problem):
        return release
    checkpoint = next((item for item in model.spec.checkpoints if item.precision == spec.precision), None)
    if checkpoint is None:
        known = ", ".join(item.precision for item in model.spec.checkpoints)
        return Problem(
            Reason.PRECISION_NOT_IN_MODEL,
            f"spec.precision: Model {model.metadata.name} has no checkpoint for {spec.precision}; use one of: {known}, "
            "or add a checkpoint to the Model",
        )
    return References(deployment, model, checkpoint, gpu_class, release)


def _read(
    kind: type[Read], document: Json | None, field: str, what: str, where: str, missing: Reason
) -> Read | Problem:
    if document is None:
        return Problem(missing, f"{field}: {what} does not exist in {where}; create it or correct the name")
    try:
        return parse(kind, _without_status(document))
    except InvalidSpec as error:
        return Problem(Reason.INVALID_REFERENCE, f"{field}: {what} is not valid: {error.message}")


def _without_status(document: Json) -> Mapping[str, object]:
    # A status may have been written by another version of the operator and must not make a spec unreadable.
    return {key: value for key, value in document.items() if key != "status"}
