"""The kinds of group forebay.dev: names, scope, printer columns and the scale subresource of each.

Read by `crd.py`, which writes the CRDs, and by tests and tools that need to find the model of a document.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from forebay.api.enginerelease import EngineRelease
from forebay.api.gpuclass import GPUClass
from forebay.api.model import Model
from forebay.api.modeldeployment import ModelDeployment
from forebay.api.rollout import Rollout, RolloutAction
from forebay.api.shape import parse
from forebay.contract.errors import InvalidSpec
from forebay.contract.names import API_VERSION, GROUP


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`; wide columns appear with `-o wide` only."""

    name: str
    json_path: str
    type: str = "string"
    wide: bool = False
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind; `scalable` adds the scale subresource on spec.replicas."""

    model: type[BaseModel]
    plural: str
    short_name: str
    namespaced: bool
    columns: tuple[Column, ...]
    scalable: bool = False

    @property
    def name(self) -> str:
        """The kind as written in a document."""
        return self.model.__name__

    @property
    def crd_name(self) -> str:
        """Name of the CustomResourceDefinition."""
        return f"{self.plural}.{GROUP}"


def _condition(name: str, field: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{name}")].{field}'


_READY = Column("Ready", _condition("Ready"), description="Whether the spec is fully realised.")
_REASON = Column("Reason", _condition("Ready", "reason"), wide=True, description="Why Ready has its status.")
_AGE = Column("Age", ".metadata.creationTimestamp", type="date")

KINDS: tuple[Kind, ...] = (
    Kind(
        model=Model,
        plural="models",
        short_name="mdl",
        namespaced=True,
        columns=(
            _READY,
            Column("License", ".spec.license.spdx"),
            Column("Accepted", ".spec.license.accepted", type="boolean"),
            _REASON,
            _AGE,
        ),
    ),
    Kind(
        model=GPUClass,
        plural="gpuclasses",
        short_name="gpc",
        namespaced=False,
        columns=(
            _READY,
            Column("Architecture", ".spec.architecture"),
            Column("Nodes", ".status.nodes", type="integer"),
            Column("Total", ".status.total", type="integer"),
            Column("Free", ".status.free", type="integer"),
            _REASON,
            _AGE,
        ),
    ),
    Kind(
        model=EngineRelease,
        plural="enginereleases",
        short_name="erel",
        namespaced=False,
        columns=(
            _READY,
            Column("Version", ".spec.version"),
            Column("Architectures", ".spec.architectures"),
            Column("Image", ".spec.image", wide=True),
            _REASON,
            _AGE,
        ),
    ),
    Kind(
        model=ModelDeployment,
        plural="modeldeployments",
        short_name="mdep",
        namespaced=True,
        scalable=True,
        columns=(
            _READY,
            Column("Servable", _condition("Servable"), description="Whether at least one complete generation answers."),
            Column("Model", ".spec.modelRef.name"),
            Column("Precision", ".spec.precision"),
            Column("GPU", ".spec.gpuClassRef.name"),
            Column("Release", ".spec.engineReleaseRef.name"),
            Column("Replicas", ".status.replicas", type="integer"),
            Column("Revision", ".status.stableRevision", wide=True),
            Column("URL", ".status.url", wide=True),
            _REASON,
            _AGE,
        ),
    ),
    Kind(
        model=Rollout,
        plural="rollouts",
        short_name="ro",
        namespaced=True,
        columns=(
            Column("Deployment", ".spec.deployment.name"),
            Column("Phase", ".status.phase"),
            Column("Step", ".status.step"),
            Column(
                "Traffic", ".status.traffic", type="integer", description="Percent of the traffic on the candidate."
            ),
            Column("From", ".spec.stable.revision", wide=True),
            Column("To", ".spec.candidate.revision", wide=True),
            Column("Release", ".spec.candidate.release"),
            Column("Message", ".status.message"),
            _AGE,
        ),
    ),
    Kind(
        model=RolloutAction,
        plural="rolloutactions",
        short_name="roa",
        namespaced=True,
        columns=(
            Column("Rollout", ".spec.rolloutRef.name"),
            Column("Verb", ".spec.verb"),
            Column("Phase", ".status.phase"),
            Column("Message", ".status.message"),
            Column("Reason", ".spec.reason", wide=True),
            _AGE,
        ),
    ),
)


def kind_of(document: Mapping[str, Any]) -> Kind:
    """The kind of a document; raises `InvalidSpec` when it is none of ours."""
    expected = f"{GROUP}/{API_VERSION}"
    if document.get("apiVersion") != expected:
        raise InvalidSpec(f"apiVersion must be {expected}, not {document.get('apiVersion')!r}", field="apiVersion")
    for kind in KINDS:
        if kind.name == document.get("kind"):
            return kind
    known = ", ".join(kind.name for kind in KINDS)
    raise InvalidSpec(f"kind must be one of {known}, not {document.get('kind')!r}", field="kind")


def parse_document(document: Mapping[str, Any]) -> BaseModel:
    """Read a document of any of our kinds; raises `InvalidSpec`."""
    return parse(kind_of(document).model, document)
