"""Revisions: what makes two of them different, and how their rendered objects are kept.

A revision is the digest of a normalised template: only what changes pods is in it, so replicas, router settings and
the size of the weights are not. Its objects are rendered once and stored as bytes in a ControllerRevision; an operator
with a newer renderer applies the stored bytes and so restarts no pod, and going back restores bytes.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from forebay.api.model import Checkpoint
from forebay.api.shape import Shape
from forebay.contract.names import ROLE_ENGINE, engine_name
from forebay.contract.versions import RENDERER_VERSION
from forebay.operator.desired.kinds import CONTROLLER_REVISION
from forebay.operator.desired.metadata import Owner, child, is_ours, revision_of
from forebay.operator.effective import Effective
from forebay.operator.quantity import parse_quantity
from forebay.operator.references import References
from forebay.operator.snapshot import Json

REVISION_CHARS: Final = 10
HISTORY: Final = 5
"""Stored revisions that are kept although nothing runs of them."""


@dataclass(frozen=True, slots=True)
class StoredRevision:
    """A revision as stored; `number` rises with each new revision of a deployment."""

    revision: str
    number: int
    renderer_version: int
    objects: tuple[Json, ...]
    document: Json


def template_of(references: References, effective: Effective) -> dict[str, Any]:
    """Everything that changes engine pods, normalised: absent instead of empty, quantities as numbers."""
    spec, gpu = references.deployment.spec, references.gpu_class.spec
    engine = spec.engine
    resources = _json(engine.resources) if engine and engine.resources else {}
    template = {
        "architecture": gpu.architecture,
        "config": effective.to_config(),
        "format": _fetched_format(references.checkpoint),
        "image": references.release.spec.image,
        "match": _json(gpu.match),
        "pod": (engine.pod if engine else None) or None,
        "precision": spec.precision,
        "resource": _json(gpu.resource),
        "resources": {key: _amounts(value) for key, value in resources.items()} or None,
        "restartToken": spec.restart_token,
        "source": _json(references.checkpoint.source),
        "tolerations": [_json(item) for item in gpu.tolerations or []] or None,
    }
    return {key: value for key, value in template.items() if value is not None}


def _fetched_format(checkpoint: Checkpoint) -> str | None:
    """The format where it decides what a download holds; a mounted source is the same with any."""
    if checkpoint.source.hugging_face is None or checkpoint.format == "auto":
        return None
    return checkpoint.format


def revision_name(template: Mapping[str, Any]) -> str:
    """The revision of a template: ten hex digits."""
    text = json.dumps(template, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:REVISION_CHARS]


def controller_revision(
    owner: Owner,
    revision: str,
    number: int,
    template: Mapping[str, Any],
    objects: Iterable[Json],
    effective: Mapping[str, Any],
) -> dict[str, Any]:
    """The ControllerRevision that stores a newly rendered revision with the configuration it was rendered from."""
    data = {
        "rendererVersion": RENDERER_VERSION,
        "template": template,
        "effective": effective,
        "objects": list(objects),
    }
    body = {"revision": number, "data": data}
    name = engine_name(owner.name, revision)
    return child(CONTROLLER_REVISION, owner, name, body, role=ROLE_ENGINE, revision=revision)


def read_revisions(children: Iterable[Json], owner: Owner) -> dict[str, StoredRevision]:
    """Stored revisions of this owner by name, oldest first."""
    found = []
    for document in children:
        name = revision_of(document)
        if document["kind"] != CONTROLLER_REVISION.kind or name is None or not is_ours(document, owner):
            continue
        data = document.get("data") or {}
        if data.get("objects"):
            version = int(data.get("rendererVersion", 0))
            found.append(StoredRevision(name, int(document["revision"]), version, tuple(data["objects"]), document))
    return {item.revision: item for item in sorted(found, key=lambda item: (item.number, item.revision))}


def surplus(stored: Mapping[str, StoredRevision], in_use: Iterable[str]) -> tuple[StoredRevision, ...]:
    """Stored revisions beyond the history that is kept, oldest first; never one that is in use."""
    used = set(in_use)
    idle = [item for item in stored.values() if item.revision not in used]
    return tuple(idle[: max(0, len(idle) - HISTORY)])


def _json(value: Shape | None) -> Any:
    return None if value is None else value.model_dump(by_alias=True, exclude_none=True)


def _amounts(quantities: Mapping[str, str | int]) -> dict[str, str]:
    return {name: str(parse_quantity(value)) for name, value in quantities.items()}
