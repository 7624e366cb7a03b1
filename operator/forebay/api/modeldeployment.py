"""Kind ModelDeployment: a model served at a precision on a GPU class by an engine release.

Written by users; the operator never writes to the spec. A field that is absent is resolved from the release or by
the operator, and `status.effective` says which value was taken and why.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import Field

from forebay.api.common import Bytes, Conditions, Count, FreeMap, Generation, Metadata, ObjectRef, Precision, Resources
from forebay.api.rollout import RolloutPolicy
from forebay.api.rules import Rule, not_above
from forebay.api.shape import ATOMIC_LIST, PRESERVE_UNKNOWN, MapKey, SchemaExtra, Shape, StatusShape, free_map
from forebay.contract.names import MAX_DEPLOYMENT_NAME

_DNS_LABEL = re.compile("[a-z]([-a-z0-9]*[a-z0-9])?")

Replicas = Annotated[int, Field(ge=0, le=1000)]
Tokens = Annotated[int, Field(ge=1, le=16_777_216)]


class DeviceCache(Shape):
    """The KV pages in the memory of the device."""

    bytes: Bytes | None = None
    """Memory for KV pages in one engine."""


class Cache(Shape):
    """The KV cache of each engine."""

    page_tokens: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Tokens in one KV page."""
    device: DeviceCache | None = None
    """The tier in device memory."""


class Scheduling(Shape):
    """How each engine batches requests."""

    max_running: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Requests that run at the same time."""
    max_batch_tokens: Tokens | None = None
    """Tokens computed in one step."""
    max_waiting: Annotated[int, Field(ge=0, le=1_048_576)] | None = None
    """Requests that may wait; more are refused with 429."""
    policy: Literal["MaxUtilization", "GuaranteedNoEvict"] | None = None
    """When a request may start: as soon as it fits now (may be preempted), or when its longest end fits."""


class Speculative(Shape):
    """Drafting of tokens ahead, for requests that do not choose themselves; answers stay the same."""

    method: Literal["None", "NGram"]
    """Who drafts: nobody, or the request's own text."""
    max_tokens: Annotated[int, Field(ge=1, le=16)] | None = None
    """Most tokens drafted in one step."""


class StructuredOutput(Shape):
    """Bounds of answers that follow a schema or grammar."""

    max_tokens: Tokens | None = None
    """Most tokens of a structured answer."""
    max_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    """Longest time a structured answer may take."""
    max_whitespace_run: Annotated[int, Field(ge=0, le=64)] | None = None
    """Most whitespace characters in a row between JSON tokens."""


class Limits(Shape):
    """Limits of one request."""

    default_max_tokens: Tokens | None = None
    """Completion tokens when the request names no limit."""
    max_tokens: Tokens | None = None
    """Most completion tokens a request may ask for."""
    max_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    """Longest time a request may take; also sets how long a draining engine pod is given."""
    max_prompt_tokens: Tokens | None = None
    """Longest prompt."""

    rules = (not_above(("defaultMaxTokens", "default_max_tokens"), ("maxTokens", "max_tokens")),)


class Router(Shape):
    """The router in front of the engines."""

    replicas: Annotated[int, Field(ge=1, le=100)] | None = None
    """Router pods."""
    api_keys_secret_ref: ObjectRef | None = None
    """Secret whose keys are client names and whose values are their API keys; absent means no key is asked for."""
    resources: Resources | None = None
    """Resources of a router container."""


class Engine(Shape):
    """The engine pods."""

    config: Annotated[FreeMap, Field(max_length=128), free_map(128)] | None = None
    """Engine configuration by key, as listed in the configSchema of the release; the operator refuses other keys."""
    resources: Resources | None = None
    """Resources of the engine container; accelerators are added from the GPUClass."""
    pod: Annotated[FreeMap, Field(max_length=32), free_map(32)] | None = None
    """Pod fields to add: labels, annotations, nodeSelector, tolerations, affinity, priorityClassName, and so on."""


class ModelDeploymentSpec(Shape):
    """What the user declares about a deployment."""

    model_ref: ObjectRef
    """The Model, in the same namespace."""
    precision: Precision
    """Precision to serve; the Model must have a checkpoint for it and the GPUClass must list it."""
    gpu_class_ref: ObjectRef
    """The GPUClass to run on."""
    engine_release_ref: ObjectRef
    """The EngineRelease to run."""
    replicas: Replicas | None = None
    """Engine pods; absent means 1. kubectl scale sets it; an autoscaler needs it to be set once."""
    cache: Cache | None = None
    """KV cache of each engine."""
    scheduling: Scheduling | None = None
    """Batching in each engine."""
    determinism: Literal["Fast", "BatchInvariant"] | None = None
    """BatchInvariant: the logits of a request are bit-equal whatever runs beside it, at a cost in speed."""
    speculative: Speculative | None = None
    """Speculative decoding."""
    structured_output: StructuredOutput | None = None
    """Bounds of structured answers."""
    limits: Limits | None = None
    """Limits of one request."""
    router: Router | None = None
    """The router in front of the engines."""
    engine: Engine | None = None
    """Configuration and pods of the engines."""
    rollout: RolloutPolicy | None = None
    """How a change reaches traffic."""
    restart_token: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Any text; a new text makes a new revision and so replaces every engine pod."""


Text = Annotated[str, Field(max_length=512)]


class RoleStatus(StatusShape):
    """Pods of one role in one revision."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Role: engine or router."""
    revision: Annotated[str, Field(min_length=1, max_length=63)]
    """Revision of the pods."""
    desired: Count
    """Pods that should exist."""
    updated: Count
    """Pods that carry this revision."""
    ready: Count
    """Pods that are ready."""
    routable: Count
    """Pods that every router can send requests to."""
    draining: Count
    """Pods that finish their requests and then go."""


class EffectiveValue(StatusShape):
    """One resolved configuration value."""

    key: Annotated[str, Field(min_length=1, max_length=128)]
    """Configuration key."""
    value: Annotated[Any, SchemaExtra(((PRESERVE_UNKNOWN, True),), replace=True)] = None
    """The value in use."""
    source: Literal["user", "release", "operator"]
    """Who chose it."""


class Effective(StatusShape):
    """The configuration that the target revision runs with."""

    release: Text
    """The EngineRelease it was resolved against."""
    digest: Annotated[str, Field(max_length=128)]
    """Digest of all values; equal digests mean an equal configuration."""
    values: Annotated[list[EffectiveValue], Field(max_length=256), MapKey("key")]
    """Each value with its source."""


class ModelDeploymentStatus(StatusShape):
    """What the operator knows about the deployment."""

    observed_generation: Generation | None = None
    """The generation of the spec that the status describes."""
    replicas: Count | None = None
    """Engine pods that exist and are not going away; read by the scale subresource."""
    selector: Annotated[str, Field(max_length=1024)] | None = None
    """Label selector of the engine pods; read by the scale subresource."""
    url: Annotated[str, Field(max_length=512)] | None = None
    """Address of the OpenAI-compatible API inside the cluster."""
    stable_revision: Annotated[str, Field(max_length=63)] | None = None
    """Revision that gets the traffic."""
    target_revision: Annotated[str, Field(max_length=63)] | None = None
    """Revision that the spec asks for."""
    rollout_ref: ObjectRef | None = None
    """The open Rollout, or the last one."""
    rejected_revisions: (
        Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=16), ATOMIC_LIST] | None
    ) = None
    """Revisions that a rollout found bad; a RolloutAction with verb retry allows one again."""
    roles: Annotated[list[RoleStatus], Field(max_length=32), MapKey("name", "revision")] | None = None
    """Pods by role and revision."""
    effective: Effective | None = None
    """The resolved configuration."""
    renderer_version: Count | None = None
    """Version of the rendering that made the target revision's objects."""
    conditions: Conditions | None = None
    """Ready, Servable, Scheduled, ModelCached, RouterSynced; while they apply GatesPassed, Reconciling, Stalled."""


class ModelDeployment(Shape):
    """A model served at a precision on a GPU class by an engine release."""

    api_version: Literal["forebay.dev/v1alpha1"]
    kind: Literal["ModelDeployment"]
    metadata: Metadata
    spec: ModelDeploymentSpec
    status: ModelDeploymentStatus | None = None

    rules = (
        Rule(
            expr=f"self.metadata.name.size() <= {MAX_DEPLOYMENT_NAME}",
            message=f"metadata.name must have at most {MAX_DEPLOYMENT_NAME} characters, so that pod names fit",
            holds=lambda value: len(value.metadata.name) <= MAX_DEPLOYMENT_NAME,
        ),
        Rule(
            expr="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            message="metadata.name must start with a letter and have only lower-case letters, digits and '-'",
            holds=lambda value: _DNS_LABEL.fullmatch(value.metadata.name) is not None,
        ),
    )
