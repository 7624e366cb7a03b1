"""How the weights of a checkpoint reach an engine pod: the volume, the init container that fills it, the path.

`image`, `pvc` and `hostPath` are mounted read-only; `http` and `huggingFace` are downloaded by an init container that
runs the engine image's `fetch` into an emptyDir. Secrets are only ever referenced, by name and key.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

from forebay.api.model import Checkpoint, HttpSource, HuggingFaceSource
from forebay.contract.errors import Bug
from forebay.operator.desired.security import container_security

MODEL_DIR: Final = "/model"
"""Where the weights are mounted in an engine container."""

MODEL_VOLUME: Final = "model"
FETCH_CONTAINER: Final = "fetch-model"


@dataclass(frozen=True, slots=True)
class ModelMount:
    """What a source adds to a pod: one volume, init containers, the model's path, names of pull secrets."""

    volume: dict[str, Any]
    path: str
    init_containers: tuple[dict[str, Any], ...] = ()
    pull_secrets: tuple[str, ...] = ()


def mount_model(checkpoint: Checkpoint, image: str, hf_endpoint: str | None) -> ModelMount:
    """The mount of a checkpoint; `image` is the engine image, which fetches downloads."""
    source = checkpoint.source
    if source.image is not None:
        volume = {
            "name": MODEL_VOLUME,
            "image": {"reference": source.image.reference, "pullPolicy": "IfNotPresent"},
        }
        secret = source.image.pull_secret_ref
        return ModelMount(volume, MODEL_DIR, pull_secrets=(secret.name,) if secret else ())
    if source.pvc is not None:
        claim = {"claimName": source.pvc.claim_name, "readOnly": True}
        path = f"{MODEL_DIR}/{source.pvc.path}" if source.pvc.path else MODEL_DIR
        return ModelMount({"name": MODEL_VOLUME, "persistentVolumeClaim": claim}, path)
    if source.host_path is not None:
        return ModelMount({"name": MODEL_VOLUME, "hostPath": {"path": source.host_path.path}}, MODEL_DIR)
    download = source.http or source.hugging_face
    if download is None:
        raise Bug("a source sets exactly one variant")
    return ModelMount(
        {"name": MODEL_VOLUME, "emptyDir": _sized(checkpoint.size_bytes)},
        MODEL_DIR,
        (_fetch_container(download, checkpoint.format, image, hf_endpoint),),
    )


def _sized(size_bytes: int | None) -> dict[str, Any]:
    """An emptyDir with room for the download and its temporary copy; without a limit where the size is unknown."""
    if size_bytes is None:
        return {}
    return {"sizeLimit": str(math.ceil(size_bytes * 2.1) + 2**30)}


def _fetch_container(
    source: HttpSource | HuggingFaceSource, weights: str | None, image: str, hf_endpoint: str | None
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": FETCH_CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "forebay.engine"],
        "args": ["fetch", *_fetch_arguments(source, weights), "--out", MODEL_DIR],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - an emptyDir of the pod
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": MODEL_VOLUME, "mountPath": MODEL_DIR},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod
        ],
    }
    if isinstance(source, HuggingFaceSource):
        if hf_endpoint is not None:
            container["env"].append({"name": "HF_ENDPOINT", "value": hf_endpoint})
        token = source.token_secret_ref
        if token is not None:
            reference = {"secretKeyRef": {"name": token.name, "key": token.key}}
            container["env"].append({"name": "HF_TOKEN", "valueFrom": reference})
    return container


def _fetch_arguments(source: HttpSource | HuggingFaceSource, weights: str | None) -> list[str]:
    if isinstance(source, HttpSource):
        return ["--url", source.url, "--sha256", source.sha256]
    chosen = [] if weights is None else ["--format", weights]
    return ["--hf-repo", source.repo, "--hf-revision", source.revision, *chosen]
