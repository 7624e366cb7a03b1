"""Kind GPUClass: which nodes carry an accelerator of one architecture, and what a pod asks for to get it.

Written by the platform team. Matching is an allow-list: a node belongs to the class only when the selector and the
product labels say so. Architecture `cpu` is an ordinary node without an accelerator.
"""

from typing import Annotated, Literal

from pydantic import Field

from forebay.api.common import (
    Architecture,
    Bytes,
    Conditions,
    Count,
    Generation,
    LabelKey,
    LabelValue,
    Metadata,
    Precisions,
    Tolerations,
)
from forebay.api.rules import Rule, matches
from forebay.api.shape import MapKey, Shape, StatusShape, UniqueItems


class ProductLabel(Shape):
    """A node label that names the accelerator product, with the products that belong to the class."""

    key: LabelKey
    """Label key, for example nvidia.com/gpu.product."""
    values: Annotated[list[LabelValue], Field(min_length=1, max_length=32), UniqueItems()]
    """Label values that belong to the class; compared exactly."""


class Match(Shape):
    """Which nodes belong to the class; every entry must hold."""

    node_selector: Annotated[dict[str, LabelValue], Field(max_length=16)] | None = None
    """Labels a node must carry."""
    product_labels: Annotated[list[ProductLabel], Field(max_length=8), MapKey("key")] | None = None
    """Product labels a node must carry, each with one of the listed values."""


class DeviceResource(Shape):
    """The extended resource that a pod requests."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=253),
        matches(
            "[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?",
            "must be an extended resource with a domain, such as nvidia.com/gpu",
        ),
    ]
    """Resource name, for example nvidia.com/gpu."""
    count: Annotated[int, Field(ge=1, le=16)]
    """Devices for one engine pod."""


class GPUClassSpec(Shape):
    """What the platform declares about a class of accelerators."""

    architecture: Architecture
    """Architecture family; a release must be compiled for exactly this one."""
    precisions: Precisions
    """Precisions that may be served on the class."""
    match: Match | None = None
    """Which nodes belong to the class; absent means every node."""
    resource: DeviceResource | None = None
    """What a pod requests; required for accelerators, absent for cpu."""
    memory_bytes: Bytes | None = None
    """Memory of one device; required for accelerators. For cpu, the most memory one engine may ask for."""
    tolerations: Tolerations | None = None
    """Tolerations that engine pods get for the nodes of the class."""

    rules = (
        Rule(
            expr="self.architecture != 'cpu' || !has(self.resource)",
            message="architecture cpu has no device; remove resource",
            holds=lambda value: value.architecture != "cpu" or value.resource is None,
            field_path=".resource",
        ),
        Rule(
            expr="self.architecture == 'cpu' || has(self.resource)",
            message="resource is required for an accelerator; name the extended resource, such as nvidia.com/gpu",
            holds=lambda value: value.architecture == "cpu" or value.resource is not None,
        ),
        Rule(
            expr="self.architecture == 'cpu' || has(self.memoryBytes)",
            message="memoryBytes is required for an accelerator; give the memory of one device",
            holds=lambda value: value.architecture == "cpu" or value.memory_bytes is not None,
        ),
    )


class GPUClassStatus(StatusShape):
    """What the operator counts in the cluster."""

    observed_generation: Generation | None = None
    """The generation of the spec that the status describes."""
    nodes: Count | None = None
    """Ready nodes of the class."""
    total: Count | None = None
    """Devices on those nodes; for cpu, the nodes themselves."""
    free: Count | None = None
    """Devices that no pod has requested; for cpu, the nodes that accept pods."""
    ambiguous_nodes: (
        Annotated[list[Annotated[str, Field(max_length=253)]], Field(max_length=64), UniqueItems()] | None
    ) = None
    """Nodes that the selector matches but whose product label is missing; they are not used."""
    conditions: Conditions | None = None
    """Ready and, while they apply, Reconciling and Stalled."""


class GPUClass(Shape):
    """Which nodes carry an accelerator of one architecture, and what a pod asks for to get it."""

    api_version: Literal["forebay.dev/v1alpha1"]
    kind: Literal["GPUClass"]
    metadata: Metadata
    spec: GPUClassSpec
    status: GPUClassStatus | None = None
