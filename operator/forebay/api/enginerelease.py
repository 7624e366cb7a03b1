"""Kind EngineRelease: one engine image, what it was compiled for, and the configuration it understands.

Printed by the image itself, so that it is always true; never written by hand. The operator resolves the effective
configuration of a deployment from `configSchema` and `defaults` and refuses what the release cannot do.
"""

from typing import Annotated, Literal

from pydantic import Field

from forebay.api.common import (
    Architecture,
    Conditions,
    FreeMap,
    Generation,
    ImageReference,
    Metadata,
    Precisions,
)
from forebay.api.rules import Rule, matches, not_above
from forebay.api.shape import MapKey, Shape, StatusShape, UniqueItems, free_map

ConfigKeyName = Annotated[
    str,
    Field(min_length=1, max_length=64),
    matches("[a-z][a-z0-9_]*", "must be a configuration key in snake_case"),
]


class ArchitecturePrecisions(Shape):
    """The precisions that the release can run on one architecture."""

    architecture: Architecture
    """One of spec.architectures."""
    precisions: Precisions
    """Precisions that run on it."""


class ConfigKey(Shape):
    """One configuration key of the engine."""

    key: ConfigKeyName
    """Name of the key."""
    type: Literal["integer", "number", "string", "boolean", "list"]
    """JSON type of its value."""
    minimum: float | None = None
    """Smallest value of a number."""
    maximum: float | None = None
    """Largest value of a number."""
    values: (
        Annotated[list[Annotated[str, Field(max_length=128)]], Field(min_length=1, max_length=64), UniqueItems()] | None
    ) = None
    """Allowed values of a string."""
    description: Annotated[str, Field(max_length=1024)] | None = None
    """What the key does."""

    rules = (
        Rule(
            expr="!has(self.values) || self.type == 'string' || self.type == 'list'",
            message="values applies to type string or list only; use minimum and maximum for numbers",
            holds=lambda value: value.values is None or value.type in {"string", "list"},
            field_path=".values",
        ),
        Rule(
            expr="(!has(self.minimum) && !has(self.maximum)) || self.type == 'integer' || self.type == 'number'",
            message="minimum and maximum apply to type integer or number only",
            holds=lambda value: (
                (value.minimum is None and value.maximum is None) or value.type in {"integer", "number"}
            ),
        ),
        not_above(("minimum", "minimum"), ("maximum", "maximum")),
    )


class ReleaseDefaults(Shape):
    """The configuration that the release uses on one architecture when nobody says otherwise."""

    architecture: Architecture
    """One of spec.architectures."""
    values: Annotated[FreeMap, Field(max_length=128), free_map(128)]
    """Configuration key to value."""


class IssueMatch(Shape):
    """Where an issue shows: every list that is there must hold the deployment's value; an absent list holds any."""

    architectures: Annotated[list[Architecture], Field(min_length=1, max_length=16), UniqueItems()] | None = None
    """Architectures."""
    precisions: Precisions | None = None
    """Precisions."""
    models: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=253)]], Field(min_length=1, max_length=32), UniqueItems()
        ]
        | None
    ) = None
    """Names of Models; a trailing * stands for any ending."""
    config: Annotated[FreeMap, Field(max_length=16), free_map(16)] | None = None
    """Effective configuration values, key by key."""


class KnownIssue(Shape):
    """A defect of this release."""

    id: Annotated[str, Field(min_length=1, max_length=64)]
    """Name of the issue; `rollout.acceptIssues` lists it."""
    summary: Annotated[str, Field(min_length=1, max_length=512)]
    """What goes wrong."""
    severity: Literal["Block", "Warn"]
    """Block holds a rollout in preflight; Warn is recorded."""
    match: IssueMatch | None = None
    """Where it shows; absent means everywhere."""
    fixed_in: Annotated[str, Field(max_length=64)] | None = None
    """Version that has the fix."""
    expires: (
        Annotated[str, Field(max_length=10), matches("[0-9]{4}-[0-9]{2}-[0-9]{2}", "must be a date such as 2027-01-31")]
        | None
    ) = None
    """Day after which the entry does not count any more and is reported instead."""


class KVFormat(Shape):
    """The format of the release's KV pages."""

    epoch: Annotated[int, Field(ge=0, le=1_000_000)]
    """Pages of another epoch cannot be read."""


class EngineReleaseSpec(Shape):
    """What an engine image says about itself."""

    version: Annotated[
        str,
        Field(min_length=1, max_length=64),
        matches("[0-9]+[.][0-9]+[.][0-9]+([-+][0-9A-Za-z.+-]+)?", "must be a version such as 0.1.0 or 0.2.0-rc.1"),
    ]
    """Version of the engine."""
    image: ImageReference
    """Engine image by tag or, better, by digest."""
    architectures: Annotated[list[Architecture], Field(min_length=1, max_length=16), UniqueItems()]
    """Architectures the image is compiled for."""
    precisions: Annotated[list[ArchitecturePrecisions], Field(min_length=1, max_length=16), MapKey("architecture")]
    """Precisions for each architecture."""
    config_schema: Annotated[list[ConfigKey], Field(max_length=128), MapKey("key")] | None = None
    """The configuration keys the engine understands."""
    defaults: Annotated[list[ReleaseDefaults], Field(max_length=16), MapKey("architecture")] | None = None
    """Default configuration for each architecture."""
    known_issues: Annotated[list[KnownIssue], Field(max_length=64), MapKey("id")] | None = None
    """Known defects."""
    kv_format: KVFormat | None = None
    """Format of KV pages."""

    rules = (
        Rule(
            expr="self.precisions.all(entry, entry.architecture in self.architectures)",
            message="precisions names an architecture that is not in architectures; add it there or remove the entry",
            holds=lambda value: all(entry.architecture in value.architectures for entry in value.precisions),
            field_path=".precisions",
        ),
        Rule(
            expr="self.architectures.all(name, self.precisions.exists(entry, entry.architecture == name))",
            message="every entry of architectures needs an entry in precisions",
            holds=lambda value: set(value.architectures) <= {entry.architecture for entry in value.precisions},
            field_path=".precisions",
        ),
        Rule(
            expr="!has(self.defaults) || self.defaults.all(entry, entry.architecture in self.architectures)",
            message="defaults names an architecture that is not in architectures; add it there or remove the entry",
            holds=lambda value: all(entry.architecture in value.architectures for entry in value.defaults or []),
            field_path=".defaults",
        ),
    )


class EngineReleaseStatus(StatusShape):
    """What the operator knows about the release."""

    observed_generation: Generation | None = None
    """The generation of the spec that the status describes."""
    conditions: Conditions | None = None
    """Ready and, while they apply, Reconciling and Stalled."""


class EngineRelease(Shape):
    """One engine image, what it was compiled for, and the configuration it understands."""

    api_version: Literal["forebay.dev/v1alpha1"]
    kind: Literal["EngineRelease"]
    metadata: Metadata
    spec: EngineReleaseSpec
    status: EngineReleaseStatus | None = None
