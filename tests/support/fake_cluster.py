"""An API server in memory: versions, generations, status split, field ownership, owner references, watches.

Synchronous and fast (plain dicts, never changed in place once stored, so readers may share them). Errors are those of
the taxonomy, as the operator's own client maps them. Its behaviour is held against recorded answers of a real API
server in `tests/unit/fake_cluster`. Time-dependent parts (garbage collection delay, watch delivery, pods) belong to the
simulation, which subscribes to changes.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fake_defaults import GENERATION_KINDS, STATUS_KINDS, refused_change, with_defaults
from fake_fields import Fields, Merger, Path
from forebay.contract.errors import ApiConflict, ApiGone
from forebay.operator.cluster import ApplyRefused

Obj = dict[str, Any]
Json = Mapping[str, Any]
Slot = tuple[str, str, str, str]
"""(apiVersion, kind, namespace, name); the namespace of a cluster-scoped object is empty."""


@dataclass(frozen=True, slots=True)
class Change:
    """One watch event: ADDED, MODIFIED or DELETED with the object as it was stored or last seen."""

    type: str
    obj: Obj


@dataclass(slots=True)
class _Stored:
    obj: Obj
    managers: dict[tuple[str, str], frozenset[Path]] = field(default_factory=dict)
    """Owned paths by (manager, subresource)."""
    applied: dict[tuple[str, str], tuple[str, Json]] = field(default_factory=dict)
    """The last applied intent and the version it led to: an unchanged repeat is recognised cheaply."""


class FakeCluster:
    """See the module's text. `now` returns the wall clock as an RFC 3339 text."""

    def __init__(self, now: Callable[[], str]) -> None:
        self._now = now
        self._stored: dict[Slot, _Stored] = {}
        self._by_kind: defaultdict[tuple[str, str], dict[tuple[str, str], _Stored]] = defaultdict(dict)
        self._version = 0
        self._uids = 0
        self._listeners: list[Callable[[Change], None]] = []

    def subscribe(self, listener: Callable[[Change], None]) -> None:
        """Call `listener` with every change from now on, in order."""
        self._listeners.append(listener)

    def get(self, api_version: str, kind: str, namespace: str | None, name: str) -> Obj | None:
        """The object, or None."""
        stored = self._stored.get((api_version, kind, namespace or "", name))
        return None if stored is None else stored.obj

    def objects(self) -> list[Obj]:
        """Everything stored, in a fixed order."""
        return [self._stored[slot].obj for slot in sorted(self._stored)]

    def orphans(self) -> list[Obj]:
        """Objects whose owners are all gone: what a garbage collector would delete."""
        uids = {stored.obj["metadata"]["uid"] for stored in self._stored.values()}
        return [
            obj
            for obj in self.objects()
            if (owners := obj["metadata"].get("ownerReferences")) and not any(o["uid"] in uids for o in owners)
        ]

    def list(
        self, api_version: str, kind: str, namespace: str | None, label_selector: str = "", field_selector: str = ""
    ) -> list[Obj]:
        """Objects of a kind by namespace and name, filtered as on the server."""
        found = []
        for (where, _), stored in sorted(self._by_kind[api_version, kind].items(), key=lambda item: item[0]):
            if namespace is not None and where != namespace:
                continue
            if labels_match(stored.obj, label_selector) and fields_match(stored.obj, field_selector):
                found.append(stored.obj)
        return found

    def create(self, obj: Json) -> Obj:
        """Create; `ApiConflict` when the name is taken."""
        if slot_of(obj) in self._stored:
            raise ApiConflict(f"{obj['kind']} {obj['metadata']['name']} already exists")
        return self._insert(_without_status(dict(obj))).obj

    def replace(self, obj: Json) -> Obj:
        """Replace everything but the status at the version that `obj` carries."""
        stored = self._existing(slot_of(obj))
        version = obj["metadata"].get("resourceVersion")
        if version is not None and version != stored.obj["metadata"]["resourceVersion"]:
            raise ApiConflict(f"{obj['kind']} {obj['metadata']['name']} has been modified")
        new = dict(obj)
        if obj["kind"] in STATUS_KINDS:
            new = _without_status(new)
            if "status" in stored.obj:
                new["status"] = stored.obj["status"]
        return self._update(stored, new)

    def apply(self, obj: Json, manager: str, *, force: bool) -> Obj:
        """Server-side apply of everything but the status."""
        intent = _without_status(dict(obj)) if obj["kind"] in STATUS_KINDS else dict(obj)
        slot = slot_of(obj)
        stored = self._stored.get(slot)
        if stored is None:
            if obj["metadata"].get("uid"):
                raise ApiConflict(f"{obj['kind']} {obj['metadata']['name']} with that uid does not exist")
            stored = self._insert(intent)
            stored.managers[manager, ""] = frozenset(Merger(obj["kind"]).leaves(intent))
            stored.applied[manager, ""] = (stored.obj["metadata"]["resourceVersion"], intent)
            return stored.obj
        return self._apply(stored, intent, (manager, ""), force=force)

    def patch_status(
        self, api_version: str, kind: str, namespace: str | None, name: str, status: Json, manager: str, version: str
    ) -> Obj:
        """Server-side apply of the status alone, with force, on top of exactly this version."""
        stored = self._existing((api_version, kind, namespace or "", name))
        if version != stored.obj["metadata"]["resourceVersion"]:
            raise ApiConflict(f"{kind} {name} has been modified")
        return self._apply(stored, {"kind": kind, "status": dict(status)}, (manager, "status"), force=True)

    def set_status(self, obj: Json, status: Json) -> Obj:
        """What a controller or kubelet writes: the whole status, without ownership."""
        stored = self._existing(slot_of(obj))
        return self._update(stored, {**stored.obj, "status": dict(status)})

    def delete(self, api_version: str, kind: str, namespace: str | None, name: str, uid: str | None = None) -> None:
        """Delete, or mark for deletion while finalizers hold the object. Raises `ApiGone` when it is not there."""
        slot = (api_version, kind, namespace or "", name)
        stored = self._existing(slot)
        metadata = stored.obj["metadata"]
        if uid is not None and metadata["uid"] != uid:
            raise ApiConflict(f"{kind} {name} has another uid")
        if metadata.get("finalizers"):
            if not metadata.get("deletionTimestamp"):
                self._update(stored, {**stored.obj, "metadata": {**metadata, "deletionTimestamp": self._now()}})
            return
        self._remove(slot, stored)

    def mark_deleted(self, obj: Json) -> None:
        """A graceful deletion has begun: the object stays, with a deletionTimestamp."""
        stored = self._existing(slot_of(obj))
        metadata = stored.obj["metadata"]
        if not metadata.get("deletionTimestamp"):
            self._update(stored, {**stored.obj, "metadata": {**metadata, "deletionTimestamp": self._now()}})

    def managers(self, obj: Json) -> dict[str, frozenset[Path]]:
        """Owned paths by manager, status included."""
        owned: dict[str, frozenset[Path]] = {}
        for (manager, _), paths in self._existing(slot_of(obj)).managers.items():
            owned[manager] = owned.get(manager, frozenset()) | paths
        return owned

    def _existing(self, slot: Slot) -> _Stored:
        stored = self._stored.get(slot)
        if stored is None:
            raise ApiGone(f"{slot[1]} {slot[3]} not found")
        return stored

    def _insert(self, obj: Obj) -> _Stored:
        self._uids += 1
        metadata = {
            **obj["metadata"],
            "uid": f"uid-{self._uids}",
            "creationTimestamp": self._now(),
            "resourceVersion": self._next_version(),
        }
        if obj["kind"] in GENERATION_KINDS:
            metadata["generation"] = 1
        stored = _Stored({**with_defaults(obj), "metadata": metadata})
        slot = slot_of(obj)
        self._stored[slot] = stored
        self._by_kind[slot[0], slot[1]][slot[2], slot[3]] = stored
        self._tell("ADDED", stored.obj)
        return stored

    def _apply(self, stored: _Stored, intent: Obj, who: tuple[str, str], *, force: bool) -> Obj:
        version = stored.obj["metadata"]["resourceVersion"]
        if stored.applied.get(who) == (version, intent):
            return stored.obj
        uid = intent.get("metadata", {}).get("uid")
        if uid is not None and uid != stored.obj["metadata"]["uid"]:
            raise ApplyRefused(f"{intent['kind']}: metadata.uid: field is immutable")
        merger = Merger(intent["kind"])
        fields = merger.leaves(intent)
        live = merger.leaves(stored.obj)
        owners = self._taken_over(stored, who, fields, live, force=force)
        merged = merger.merge(stored.obj, intent)
        kept = frozenset().union(fields, *owners.values())
        dropped = stored.managers.get(who, frozenset()) - kept
        if dropped:
            merged = merger.prune(merged, dropped)
        owners[who] = frozenset(fields)
        changed_owners = owners != stored.managers
        stored.managers = owners
        new = self._update(stored, merged, touch=changed_owners)
        stored.applied[who] = (new["metadata"]["resourceVersion"], intent)
        return new

    @staticmethod
    def _taken_over(
        stored: _Stored, who: tuple[str, str], fields: Fields, live: Fields, *, force: bool
    ) -> dict[tuple[str, str], frozenset[Path]]:
        """The other managers' paths after `who` took the fields whose values differ."""
        missing = object()
        differing = {path for path, value in fields.items() if live.get(path, missing) != value}
        owners = {}
        for other, paths in stored.managers.items():
            if other == who:
                continue
            lost = paths & differing
            if lost and not force:
                raise ApiConflict(f"conflict with {other[0]} on {min(map(str, lost))}")
            if paths - lost:
                owners[other] = paths - lost
        return owners

    def _update(self, stored: _Stored, new: Obj, *, touch: bool = False) -> Obj:
        old = stored.obj
        new = with_defaults(new)
        kept = {name: old["metadata"][name] for name in ("uid", "creationTimestamp", "resourceVersion")}
        if "generation" in old["metadata"]:
            kept["generation"] = old["metadata"]["generation"]
        new = {**new, "metadata": {**new["metadata"], **kept}}
        if new == old and not touch:
            return old
        refused = refused_change(old, new)
        if refused is not None:
            raise ApplyRefused(f"{new['kind']} {new['metadata']['name']}: {refused}: field is immutable")
        if "generation" in kept and _intent_of(new) != _intent_of(old):
            new["metadata"]["generation"] = kept["generation"] + 1
        new["metadata"]["resourceVersion"] = self._next_version()
        stored.obj = new
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers", ["graceful"]):
            self._remove(slot_of(new), stored)
            return new
        self._tell("MODIFIED", new)
        return new

    def _remove(self, slot: Slot, stored: _Stored) -> None:
        del self._stored[slot]
        del self._by_kind[slot[0], slot[1]][slot[2], slot[3]]
        metadata = {**stored.obj["metadata"], "resourceVersion": self._next_version()}
        self._tell("DELETED", {**stored.obj, "metadata": metadata})

    def _next_version(self) -> str:
        self._version += 1
        return str(self._version)

    def _tell(self, kind: str, obj: Obj) -> None:
        for listener in self._listeners:
            listener(Change(kind, obj))


def slot_of(obj: Json) -> Slot:
    """Where an object is stored."""
    metadata = obj["metadata"]
    return obj["apiVersion"], obj["kind"], metadata.get("namespace") or "", metadata["name"]


def labels_match(obj: Json, selector: str) -> bool:
    """`key=value` and `key` terms, separated by commas."""
    labels = obj["metadata"].get("labels") or {}
    for term in filter(None, selector.split(",")):
        key, equals, value = term.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    return True


def fields_match(obj: Json, selector: str) -> bool:
    """`path=value` and `path!=value` terms, separated by commas."""
    for term in filter(None, selector.split(",")):
        path, _, value = term.partition("=")
        wanted_equal = not path.endswith("!")
        found: Any = obj
        for step in path.rstrip("!").split("."):
            found = (found or {}).get(step)
        if ((found or "") == value) != wanted_equal:
            return False
    return True


def _without_status(obj: Obj) -> Obj:
    obj.pop("status", None)
    return obj


def _intent_of(obj: Obj) -> Obj:
    return {name: value for name, value in obj.items() if name not in {"metadata", "status"}}
