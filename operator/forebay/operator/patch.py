"""One status write per pass, and none when nothing changed."""

from collections.abc import Mapping
from typing import Any

from forebay.operator.actions import PatchStatus
from forebay.operator.snapshot import Json


def patch_if_changed(document: Json, status: Mapping[str, Any]) -> tuple[PatchStatus, ...]:
    """The status write for an object, or nothing when its status already says the same.

    A field that we do not write (because a newer operator added it) is no difference.
    """
    old = document.get("status") or {}
    if all(old.get(key) == value for key, value in status.items()) and not _dropped(old, status):
        return ()
    metadata = document["metadata"]
    return (
        PatchStatus(
            document["apiVersion"], document["kind"], metadata.get("namespace"), metadata["name"], dict(status)
        ),
    )


OPTIONAL_FIELDS = (
    "stableRevision",
    "targetRevision",
    "effective",
    "rendererVersion",
    "rolloutRef",
    "rejectedRevisions",
)
"""Status fields that are left out while they have no value."""


def _dropped(old: Json, status: Mapping[str, Any]) -> bool:
    return any(key in old and key not in status for key in OPTIONAL_FIELDS)
