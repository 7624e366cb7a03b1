"""Desired objects against observed ones: what must be applied and what must go.

An object is applied when it is absent, when the digest recorded at the last apply differs (a field is rendered
differently or not any more), or when a rendered field was changed by somebody. Fields that we do not render belong to
others, such as the API server's defaults, and are never looked at; so an object at rest costs no write.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from forebay.contract.errors import InvalidSpec
from forebay.contract.names import MANAGER_ROUTE, MANAGER_WORKLOAD
from forebay.operator.actions import Apply, Delete
from forebay.operator.desired.kinds import CONTROLLER_REVISION, ROLLOUT
from forebay.operator.desired.metadata import ANNOTATION_APPLIED_HASH, Owner, is_ours
from forebay.operator.desired.routes import ANNOTATION_DIGEST
from forebay.operator.quantity import parse_quantity
from forebay.operator.snapshot import Json

Key: TypeAlias = tuple[str, str]
"""Kind and name of a child; the namespace is the owner's."""

_FROZEN: Final = frozenset({CONTROLLER_REVISION.kind, ROLLOUT.kind})
_QUANTITY_MAPS: Final = frozenset({"requests", "limits"})
_QUANTITY_FIELDS: Final = frozenset({"sizeLimit"})
_MERGE_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "imagePullSecrets": ("name",),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
"""Lists that the API server merges by keys: entries of other owners are left alone."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Applies and deletes, and the names that cannot be applied yet because a former owner's object is still there."""

    applies: tuple[Apply, ...]
    deletes: tuple[Delete, ...]
    blocked: tuple[str, ...]


def key_of(document: Json) -> Key:
    """The key of a child."""
    return str(document["kind"]), str(document["metadata"]["name"])


def compare(desired: Sequence[Json], keep: Iterable[Key], children: Iterable[Json], owner: Owner) -> Difference:
    """What brings `children` to `desired`; children in `keep` stay as they are, all others of this owner go.

    ControllerRevisions and Rollouts are never changed once they exist.
    """
    observed = {key_of(item): item for item in children}
    applies, blocked = [], []
    for item in desired:
        current = observed.get(key_of(item))
        if current is not None and (not is_ours(current, owner) or current["metadata"].get("deletionTimestamp")):
            blocked.append("{} {}".format(*key_of(item)))
            continue
        reason = difference(item, current)
        if reason is not None:
            applies.append(Apply(stamp(item), _manager(item), force=current is not None, reason=reason))
    wanted = {key_of(item) for item in desired} | set(keep)
    gone = [
        item
        for key, item in observed.items()
        if key not in wanted and is_ours(item, owner) and not item["metadata"].get("deletionTimestamp")
    ]
    return Difference(tuple(applies), tuple(delete(item, "not wanted any more") for item in gone), tuple(blocked))


def delete(document: Json, reason: str) -> Delete:
    """The deletion of exactly this object."""
    metadata = document["metadata"]
    return Delete(
        document["apiVersion"],
        document["kind"],
        metadata["namespace"],
        metadata["name"],
        metadata.get("uid", ""),
        reason,
    )


def stamp(document: Json) -> dict[str, Any]:
    """The object with its digest as an annotation, as it is applied."""
    metadata = document["metadata"]
    annotations = {**(metadata.get("annotations") or {}), ANNOTATION_APPLIED_HASH: digest(document)}
    return {**document, "metadata": {**metadata, "annotations": annotations}}


def digest(document: Json) -> str:
    """Digest of a rendered object."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def difference(desired: Json, observed: Json | None) -> str | None:
    """Why the object must be applied, or None."""
    if observed is None:
        return "absent"
    if desired["kind"] in _FROZEN:
        return None
    annotations = observed["metadata"].get("annotations") or {}
    if annotations.get(ANNOTATION_APPLIED_HASH) != digest(desired):
        return "rendered differently"
    path = first_change(desired, observed)
    return None if path is None else f"{path} was changed"


def first_change(desired: Any, observed: Any, path: str = "") -> str | None:
    """Path of the first rendered field whose observed value differs, or None."""
    if desired == observed:
        return None
    name = path.rpartition(".")[2]
    if isinstance(desired, Mapping):
        if not isinstance(observed, Mapping):
            return path or "(root)"
        return _first_in_map(desired, observed, path, quantities=name in _QUANTITY_MAPS)
    if isinstance(desired, list | tuple):
        if not isinstance(observed, list | tuple):
            return path
        return _first_in_list(desired, observed, path, _MERGE_KEYS.get(name))
    same = _same_quantity(desired, observed) if name in _QUANTITY_FIELDS else desired == observed
    return None if same else path


def _first_in_map(
    desired: Mapping[str, Any], observed: Mapping[str, Any], path: str, *, quantities: bool
) -> str | None:
    for key, value in desired.items():
        here = f"{path}.{key}".removeprefix(".")
        if key in observed:
            changed = _changed_entry(value, observed[key], here, quantities=quantities)
        else:
            changed = None if _is_left_out(value) else here
        if changed is not None:
            return changed
    return None


def _changed_entry(desired: Any, observed: Any, path: str, *, quantities: bool) -> str | None:
    if quantities:
        return None if _same_quantity(desired, observed) else path
    return first_change(desired, observed, path)


def _is_left_out(value: Any) -> bool:
    """Whether the API server leaves such a value out of what it stores."""
    return value is None or value in ("", [])


def _first_in_list(
    desired: Sequence[Any], observed: Sequence[Any], path: str, merge_keys: tuple[str, ...] | None
) -> str | None:
    if merge_keys is not None:
        found = {_identity(item, merge_keys): item for item in observed}
        observed = [found.get(_identity(item, merge_keys)) for item in desired]
    if len(desired) != len(observed):
        return path
    for index, (mine, theirs) in enumerate(zip(desired, observed, strict=True)):
        changed = first_change(mine, theirs, f"{path}[{index}]")
        if changed is not None:
            return changed
    return None


def _identity(item: Json, merge_keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(key) for key in merge_keys)


def _same_quantity(desired: Any, observed: Any) -> bool:
    try:
        return parse_quantity(desired) == parse_quantity(observed)
    except (InvalidSpec, TypeError):
        return bool(desired == observed)


def _manager(document: Json) -> str:
    is_routes = ANNOTATION_DIGEST in (document["metadata"].get("annotations") or {})
    return MANAGER_ROUTE if is_routes else MANAGER_WORKLOAD
