"""Labels, annotations, owner references and names of child objects: the one place where they are put together.

Every child carries the deployment's name and uid, so that `observe` finds it by label and a namesake of an earlier,
deleted deployment is never mistaken for ours; the owner reference lets Kubernetes remove it with its owner.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from forebay.contract.names import (
    API_VERSION,
    GROUP,
    LABEL_DEPLOYMENT,
    LABEL_DEPLOYMENT_UID,
    LABEL_MANAGED_BY,
    LABEL_REVISION,
    LABEL_ROLE,
    MANAGED_BY,
)
from forebay.operator.desired.kinds import Kind
from forebay.operator.snapshot import Json

ANNOTATION_APPLIED_HASH: Final = f"{GROUP}/applied-hash"
"""Digest of the object as it was last applied; a field that is no longer rendered changes it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The ModelDeployment that owns the children."""

    namespace: str
    name: str
    uid: str


def owner_of(document: Json) -> Owner:
    """The owner described by a ModelDeployment as the API returns it."""
    metadata = document["metadata"]
    return Owner(metadata["namespace"], metadata["name"], metadata["uid"])


def selector(owner: Owner, role: str, revision: str | None = None) -> dict[str, str]:
    """Labels that select the pods of one role, or of one revision of it."""
    labels = {LABEL_DEPLOYMENT: owner.name, LABEL_ROLE: role}
    return labels if revision is None else {**labels, LABEL_REVISION: revision}


def labels(owner: Owner, role: str, revision: str | None = None) -> dict[str, str]:
    """All labels of a child or pod."""
    return {
        LABEL_MANAGED_BY: MANAGED_BY,
        **selector(owner, role, revision),
        LABEL_DEPLOYMENT_UID: owner.uid,
    }


def child(
    kind: Kind,
    owner: Owner,
    name: str,
    body: Mapping[str, Any],
    *,
    role: str,
    revision: str | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A child object: `body` holds everything but apiVersion, kind and metadata."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": owner.namespace,
        "labels": labels(owner, role, revision),
        "ownerReferences": [
            {
                "apiVersion": f"{GROUP}/{API_VERSION}",
                "kind": "ModelDeployment",
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
            }
        ],
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **body}


def is_ours(document: Json, owner: Owner) -> bool:
    """Whether the object's controller is exactly this deployment."""
    references = document["metadata"].get("ownerReferences") or []
    return any(item.get("uid") == owner.uid and item.get("controller") for item in references)


def revision_of(document: Json) -> str | None:
    """The revision label of a child or pod."""
    value = (document["metadata"].get("labels") or {}).get(LABEL_REVISION)
    return None if value is None else str(value)


def role_of(document: Json) -> str | None:
    """The role label of a child or pod."""
    value = (document["metadata"].get("labels") or {}).get(LABEL_ROLE)
    return None if value is None else str(value)
