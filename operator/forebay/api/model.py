"""Kind Model: where the weights of a model are, for each precision, and its licence.

Written by users; read by the operator when it renders engine pods. The operator downloads nothing itself, so the
status says only what it can know: whether each checkpoint may be served.
"""

from typing import Annotated, Literal

from pydantic import Field

from forebay.api.common import (
    Bytes,
    Conditions,
    Generation,
    ImageReference,
    Metadata,
    ObjectName,
    ObjectRef,
    Precision,
    SecretKeyRef,
)
from forebay.api.rules import Rule, exactly_one, matches
from forebay.api.shape import MapKey, Shape, StatusShape

Sha256 = Annotated[
    str,
    Field(min_length=1, max_length=128),
    matches("[a-f0-9]{64}", "must be a SHA-256 digest: 64 lower-case hex digits, without a prefix"),
]
HttpUrl = Annotated[
    str,
    Field(min_length=1, max_length=2048),
    matches("https?://[A-Za-z0-9._~:/?#@!$&()*+,;=%-]+", "must be a URL that starts with http:// or https://"),
]
Repository = Annotated[
    str,
    Field(min_length=1, max_length=256),
    matches(
        "[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}",
        "must be a repository as owner/name, without a host",
    ),
]
Revision = Annotated[
    str,
    Field(min_length=1, max_length=128),
    matches("[A-Za-z0-9][A-Za-z0-9._/-]*", "must be a commit, tag or branch of the repository"),
]
AbsolutePath = Annotated[
    str,
    Field(min_length=1, max_length=1024),
    matches("/.*", "must be an absolute path that starts with /"),
    Rule(
        expr="!self.contains('..')",
        message="must not contain '..'",
        holds=lambda value: ".." not in value,
    ),
]
RelativePath = Annotated[
    str,
    Field(min_length=1, max_length=1024),
    matches("[^/].*", "must be a path inside the volume, without a leading /"),
    Rule(
        expr="!self.contains('..')",
        message="must not contain '..'",
        holds=lambda value: ".." not in value,
    ),
]


class HuggingFaceSource(Shape):
    """A repository of the Hugging Face hub, downloaded when the pod starts."""

    repo: Repository
    """Repository as owner/name."""
    revision: Revision
    """Commit, tag or branch; a commit makes the deployment repeatable."""
    token_secret_ref: SecretKeyRef | None = None
    """Access token for a private or gated repository."""


class ImageSource(Shape):
    """An OCI image that holds the model files, mounted as an image volume."""

    reference: ImageReference
    """Image by tag or digest."""
    pull_secret_ref: ObjectRef | None = None
    """Secret of type kubernetes.io/dockerconfigjson for a private registry."""


class PvcSource(Shape):
    """A PersistentVolumeClaim in the namespace of the Model, mounted read-only."""

    claim_name: ObjectName
    """Name of the claim."""
    path: RelativePath | None = None
    """File or folder inside the volume; absent means its root."""


class HttpSource(Shape):
    """One file, downloaded when the pod starts and checked against its digest."""

    url: HttpUrl
    """Address of the file."""
    sha256: Sha256
    """Digest that the file must have."""


class HostPathSource(Shape):
    """A folder on the node, for development and tests; restricted namespaces refuse such pods."""

    path: AbsolutePath
    """Absolute path of the folder that holds the model files."""


class Source(Shape):
    """Where the files are: exactly one of the fields."""

    hugging_face: HuggingFaceSource | None = None
    """A repository of the Hugging Face hub."""
    image: ImageSource | None = None
    """An OCI image."""
    pvc: PvcSource | None = None
    """A PersistentVolumeClaim."""
    http: HttpSource | None = None
    """A file on a web server."""
    host_path: HostPathSource | None = None
    """A folder on the node."""

    rules = (
        exactly_one(
            "source",
            {
                "huggingFace": "hugging_face",
                "image": "image",
                "pvc": "pvc",
                "http": "http",
                "hostPath": "host_path",
            },
        ),
    )


class Checkpoint(Shape):
    """The weights at one precision."""

    precision: Precision
    """Precision of the weights; each precision once."""
    source: Source
    """Where the files are."""
    format: Literal["auto", "safetensors", "gguf"] | None = None
    """File format; absent or auto lets the engine look."""
    size_bytes: Bytes | None = None
    """Size of the weights; sizes the start-up probe, the download volume and the memory check."""

    rules = (
        Rule(
            expr="!has(self.source.http) || !has(self.format) || self.format != 'safetensors'",
            message="format safetensors needs a folder; source.http carries one file, so use format gguf",
            holds=lambda value: value.source.http is None or value.format != "safetensors",
            field_path=".format",
        ),
    )


class License(Shape):
    """The licence of the weights."""

    spdx: Annotated[
        str,
        Field(min_length=1, max_length=128),
        matches("[A-Za-z0-9(][A-Za-z0-9.+ ()-]*", "must be an SPDX expression such as Apache-2.0 or LicenseRef-llama3"),
    ]
    """SPDX identifier or expression."""
    accepted: bool | None = None
    """True once you accept the licence; anything else keeps the model from being served."""


class ModelSpec(Shape):
    """What the user declares about a model."""

    checkpoints: Annotated[list[Checkpoint], Field(min_length=1, max_length=8), MapKey("precision")]
    """The weights, one entry for each precision."""
    license: License
    """The licence of the weights."""


class CheckpointStatus(StatusShape):
    """What the operator knows about one checkpoint."""

    precision: Precision
    """Precision of the checkpoint."""
    phase: Literal["Available", "Blocked"]
    """Available: deployments may use it. Blocked: the licence is not accepted."""


class ModelStatus(StatusShape):
    """What the operator knows about the model."""

    observed_generation: Generation | None = None
    """The generation of the spec that the status describes."""
    checkpoints: Annotated[list[CheckpointStatus], Field(max_length=8), MapKey("precision")] | None = None
    """State of each checkpoint."""
    conditions: Conditions | None = None
    """Ready, LicenseAccepted and, while they apply, Reconciling and Stalled."""


class Model(Shape):
    """Where the weights of a model are, for each precision, and its licence."""

    api_version: Literal["forebay.dev/v1alpha1"]
    kind: Literal["Model"]
    metadata: Metadata
    spec: ModelSpec
    status: ModelStatus | None = None
