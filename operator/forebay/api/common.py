"""Field types that more than one kind uses: precisions, architectures, references, quantities, conditions, metadata.

Precisions and architectures are closed sets. An architecture is a family and matches only itself: a numeric "at
least" would be wrong, because a newer family can lack what an older one has.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from forebay.api.quantity import QUANTITY_PATTERN, parse_quantity
from forebay.api.rules import Rule, matches
from forebay.api.shape import (
    ATOMIC_LIST,
    INT_OR_STRING,
    MapKey,
    SchemaExtra,
    Shape,
    StatusShape,
    UniqueItems,
)

Precision = Literal["fp32", "bf16", "fp16", "fp8", "nvfp4", "mxfp4", "int8", "int4"]
Architecture = Literal[
    "cpu", "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120", "sm121", "gfx90a", "gfx942", "gfx950"
]
Precisions = Annotated[list[Precision], Field(min_length=1, max_length=8), UniqueItems()]

ObjectName = Annotated[
    str,
    Field(min_length=1, max_length=253),
    matches(
        "[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*",
        "must be the name of an object: lower-case letters, digits, '-' and '.'",
    ),
]
SecretKey = Annotated[
    str,
    Field(min_length=1, max_length=253),
    matches("[-._a-zA-Z0-9]+", "must be a key of the Secret: letters, digits, '-', '_' and '.'"),
]
LabelValue = Annotated[
    str,
    Field(max_length=63),
    matches(
        "([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?",
        "must be a label value: at most 63 letters, digits, '-', '_' and '.'",
    ),
]
LabelKey = Annotated[
    str,
    Field(min_length=1, max_length=317),
    matches(
        "([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?",
        "must be a label key such as nvidia.com/gpu.product",
    ),
]
ImageReference = Annotated[
    str,
    Field(min_length=1, max_length=512),
    matches(
        "[a-zA-Z0-9][a-zA-Z0-9._-]*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
        "(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}|(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?@sha256:[a-f0-9]{64})",
        "must be an image with a tag (name:tag) or a digest (name@sha256:<64 hex digits>)",
    ),
]
Bytes = Annotated[int, Field(ge=1, le=2**53)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Generation = Annotated[int, Field(ge=0, le=2**53)]

_QUANTITY_MESSAGE = "must be a Kubernetes quantity that is not negative, such as 500m, 2 or 4Gi"
_QUANTITY_RULE = matches(QUANTITY_PATTERN, _QUANTITY_MESSAGE)

Quantity = Annotated[
    int | Annotated[str, Field(max_length=32)],
    Rule(
        expr=f"type(self) == int ? self >= 0 : {_QUANTITY_RULE.expr.replace('self', 'string(self)')}",
        message=_QUANTITY_MESSAGE,
        holds=lambda value: value >= 0 if isinstance(value, int) else _QUANTITY_RULE.holds(value),
    ),
    SchemaExtra(((INT_OR_STRING, True), ("maxLength", 32)), replace=True),
]

RESOURCE_NAMES = ("cpu", "memory", "ephemeral-storage")
Quantities = Annotated[
    dict[str, Quantity],
    Field(max_length=8),
    Rule(
        expr="self.all(name, name in ['cpu', 'memory', 'ephemeral-storage'])",
        message="may name cpu, memory and ephemeral-storage only; accelerators come from the GPUClass",
        holds=lambda value: all(name in RESOURCE_NAMES for name in value),
    ),
]


def _requests_fit(requests: Mapping[str, int | str], limits: Mapping[str, int | str]) -> bool:
    both = requests.keys() & limits.keys()
    return all(parse_quantity(requests[name]) <= parse_quantity(limits[name]) for name in both)


class ObjectRef(Shape):
    """A reference to an object by name."""

    name: ObjectName
    """Name of the object."""


class SecretKeyRef(Shape):
    """A key of a Secret in the same namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: SecretKey
    """Key inside the Secret."""


class Resources(Shape):
    """Compute resources of one container."""

    requests: Quantities | None = None
    """What the scheduler reserves."""
    limits: Quantities | None = None
    """What the container may use at most."""

    rules = (
        Rule(
            expr="!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) || "
            "!isQuantity(string(self.requests[name])) || !isQuantity(string(self.limits[name])) || "
            "quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)",
            message="requests must not be above limits; lower the request or raise the limit of the same resource",
            holds=lambda value: _requests_fit(value.requests or {}, value.limits or {}),
            field_path=".requests",
        ),
    )


class Toleration(Shape):
    """A toleration of a node taint, as in a pod."""

    key: LabelKey | None = None
    """Taint key; absent tolerates every key and needs operator Exists."""
    operator: Literal["Exists", "Equal"] | None = None
    """Equal (the meaning of an absent operator) compares value; Exists does not."""
    value: LabelValue | None = None
    """Taint value for operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Taint effect; absent tolerates every effect."""

    rules = (
        Rule(
            expr="has(self.key) || (has(self.operator) && self.operator == 'Exists')",
            message="a toleration without key needs operator Exists",
            holds=lambda value: value.key is not None or value.operator == "Exists",
        ),
        Rule(
            expr="!has(self.value) || !has(self.operator) || self.operator != 'Exists'",
            message="a toleration with operator Exists must not set value",
            holds=lambda value: value.value is None or value.operator != "Exists",
        ),
    )


Tolerations = Annotated[list[Toleration], Field(max_length=16), ATOMIC_LIST]


class Condition(StatusShape):
    """One observation of the operator about the object."""

    type: Annotated[str, Field(min_length=1, max_length=63)]
    """What is observed, for example Ready."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    observed_generation: Generation | None = None
    """The generation of the spec that was looked at."""
    reason: Annotated[str, Field(min_length=1, max_length=128)]
    """One word from a closed set, for programs."""
    message: Annotated[str, Field(max_length=32768)]
    """What happened and what to do, for people."""
    last_transition_time: Annotated[str, Field(max_length=64), SchemaExtra((("format", "date-time"),))]
    """When status last changed."""


Conditions = Annotated[list[Condition], Field(max_length=32), MapKey("type")]


class Metadata(StatusShape):
    """The part of an object's metadata that Forebay reads."""

    model_config = ConfigDict(extra="ignore")

    name: str
    """Name of the object."""
    namespace: str | None = None
    """Namespace of the object; absent for cluster-scoped kinds and in files without one."""
    uid: str | None = None
    """Set by the API server."""
    generation: int | None = None
    """Rises with each change of the spec; set by the API server."""
    resource_version: str | None = None
    """Set by the API server."""
    creation_timestamp: str | None = None
    """Set by the API server."""
    deletion_timestamp: str | None = None
    """Set while the object is being deleted."""
    labels: dict[str, str] | None = None
    """Labels of the object."""
    annotations: dict[str, str] | None = None
    """Annotations of the object."""


FreeMap = dict[str, Any]
