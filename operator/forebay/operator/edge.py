"""From watch events to keys: which resources must be looked at when an object changes. Pure bookkeeping.

Besides the object itself these are the ModelDeployments that refer to it, the owner named by its labels, and the
GPUClass whose free devices a pod takes. `main` feeds every watch event in, and puts the keys into the queue. An event
that never arrives is made good by the periodic sweep.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from forebay.contract.names import LABEL_DEPLOYMENT
from forebay.operator.cluster import ACTION_KIND, DEPLOYMENT_KIND, GPU_CLASS_KIND, MODEL_KIND, RELEASE_KIND, Json
from forebay.operator.queue import Key

OWN_KINDS: Final = frozenset({ACTION_KIND, DEPLOYMENT_KIND, GPU_CLASS_KIND, MODEL_KIND, RELEASE_KIND})

POD_SETTLE_S: Final = 1.0
"""A pod's event makes its GPUClass count again this much later, once for a burst of pods."""

Wish = tuple[Key, float]
"""A key and the delay in seconds after which it should be looked at."""


class Edge:
    """Remembers references between resources and the last meaningful state of shared ones."""

    def __init__(self) -> None:
        self._references: dict[Key, frozenset[Key]] = {}
        self._dependants: defaultdict[Key, set[Key]] = defaultdict(set)
        self._classes: set[Key] = set()
        self._fingerprints: dict[tuple[str, str], tuple[Any, ...]] = {}

    def wishes(self, kind: str, obj: Json, *, deleted: bool) -> list[Wish]:
        """Keys to look at after an event about `obj`, without repetition and in a fixed order."""
        if kind in OWN_KINDS:
            found = self._own(kind, obj, deleted)
        elif kind == "Node":
            found = self._node(obj, deleted)
        else:
            found = self._child(kind, obj)
        return sorted(dict(sorted(found, reverse=True)).items())

    def _own(self, kind: str, obj: Json, deleted: bool) -> Iterator[Wish]:
        key = key_of(kind, obj)
        yield key, 0.0
        if kind == ACTION_KIND:
            yield from self._ordered(obj)
            return
        if kind == DEPLOYMENT_KIND:
            self._refer(key, frozenset() if deleted else references(obj))
            return
        metadata = obj["metadata"]
        # Status writes of ours on a shared resource must not wake everything that refers to it.
        if self._changed(kind, obj, deleted, (metadata.get("generation"), metadata.get("deletionTimestamp"))):
            for dependant in self._dependants.get(key, ()):
                yield dependant, 0.0
        if kind == GPU_CLASS_KIND:
            (self._classes.discard if deleted else self._classes.add)(key)

    def _ordered(self, action: Json) -> Iterator[Wish]:
        """The deployment whose run an action is about: its name begins the name of the run."""
        name = ((action.get("spec") or {}).get("rolloutRef") or {}).get("name") or ""
        deployment = name.rsplit("-", 2)[0]
        if deployment:
            yield Key(DEPLOYMENT_KIND, action["metadata"].get("namespace") or "", deployment), 0.0

    def _node(self, obj: Json, deleted: bool) -> Iterator[Wish]:
        if self._changed("Node", obj, deleted, node_fingerprint(obj)):
            yield from ((key, 0.0) for key in self._classes)

    def _child(self, kind: str, obj: Json) -> Iterator[Wish]:
        metadata = obj["metadata"]
        labels = metadata.get("labels") or {}
        namespace = metadata.get("namespace", "")
        if LABEL_DEPLOYMENT not in labels:
            return
        owner = Key(DEPLOYMENT_KIND, namespace, labels[LABEL_DEPLOYMENT])
        yield owner, 0.0
        if kind != "Pod":
            return
        # A pod outlives its deleted owner, and then nothing says which class its device goes back to.
        for key in self._references.get(owner, self._classes):
            if key.kind == GPU_CLASS_KIND:
                yield key, POD_SETTLE_S

    def _refer(self, key: Key, now: frozenset[Key]) -> None:
        before = self._references.get(key, frozenset())
        for gone in before - now:
            self._dependants[gone].discard(key)
            if not self._dependants[gone]:
                del self._dependants[gone]
        for new in now - before:
            self._dependants[new].add(key)
        if now:
            self._references[key] = now
        else:
            self._references.pop(key, None)

    def _changed(self, kind: str, obj: Json, deleted: bool, fingerprint: tuple[Any, ...]) -> bool:
        slot = (kind, obj["metadata"]["uid"])
        if deleted:
            self._fingerprints.pop(slot, None)
            return True
        before = self._fingerprints.get(slot)
        self._fingerprints[slot] = fingerprint
        return before != fingerprint


def key_of(kind: str, obj: Json) -> Key:
    """The key of one of our own resources."""
    metadata = obj["metadata"]
    return Key(kind, metadata.get("namespace") or "", metadata["name"])


def references(deployment: Json) -> frozenset[Key]:
    """What a ModelDeployment refers to; malformed references are left out."""
    spec = deployment.get("spec") or {}
    namespace = deployment["metadata"].get("namespace") or ""
    wanted = (
        (MODEL_KIND, namespace, spec.get("modelRef")),
        (GPU_CLASS_KIND, "", spec.get("gpuClassRef")),
        (RELEASE_KIND, "", spec.get("engineReleaseRef")),
    )
    return frozenset(Key(kind, where, ref["name"]) for kind, where, ref in wanted if ref and ref.get("name"))


def node_fingerprint(node: Json) -> tuple[Any, ...]:
    """What about a node matters to us; heartbeats and image lists do not."""
    spec = node.get("spec") or {}
    status = node.get("status") or {}
    ready = next((c.get("status") for c in status.get("conditions") or () if c.get("type") == "Ready"), None)
    labels = node["metadata"].get("labels") or {}
    allocatable = status.get("allocatable") or {}
    taints = [(t.get("key"), t.get("value"), t.get("effect")) for t in spec.get("taints") or ()]
    return sorted(labels.items()), sorted(allocatable.items()), taints, spec.get("unschedulable", False), ready
