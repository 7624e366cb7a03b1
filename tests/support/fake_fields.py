"""Field ownership for the fake API server: the part of structured merge that the operator's objects need.

An applied object is a set of leaf paths. Lists are atomic unless they are known to be maps by key, as in the published
schemas; such an item is named in a path by its key fields. `merge` lays an applied object over a live one, `prune`
removes fields that their manager no longer applies.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Path = tuple[Any, ...]
Fields = dict[Path, Any]

LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "roles": ("name", "revision"),
    "secrets": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "values": ("key",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
ATOMIC_MAPS = frozenset({"selector", "nodeSelector", "labelSelector", "podSelector", "fieldRef", "secretKeyRef"})
ATOMIC_KINDS = frozenset({"NetworkPolicy", "Role", "RoleBinding", "ControllerRevision"})
_ALWAYS = frozenset({("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")})


class Merger:
    """Field logic for one kind; in kinds of `ATOMIC_KINDS` every list outside the metadata is atomic."""

    def __init__(self, kind: str) -> None:
        self._atomic = kind in ATOMIC_KINDS

    def keys(self, path: Path, items: list[Any]) -> tuple[str, ...] | None:
        """Key fields of the list at `path`, or None for an atomic list."""
        name = path[-1]
        if self._atomic and name != "ownerReferences":
            return None
        if name == "ports":
            first = items[0] if items else {}
            return ("containerPort", "protocol") if "containerPort" in first else ("port", "protocol")
        keys = LIST_KEYS.get(name)
        if keys is None or not all(isinstance(item, dict) and keys[0] in item for item in items):
            return None
        return keys

    def leaves(self, obj: Mapping[str, Any]) -> Fields:
        """Every owned path of an applied object with its value."""
        return {path: value for path, value in self._walk((), obj) if path not in _ALWAYS}

    def _walk(self, path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
        if isinstance(value, dict) and value and not (path and path[-1] in ATOMIC_MAPS):
            for name, inner in value.items():
                yield from self._walk((*path, name), inner)
        elif isinstance(value, list) and value and (keys := self.keys(path, value)):
            for item in value:
                key = item_key(item, keys)
                yield (*path, key), None
                yield from self._walk((*path, key), item)
        else:
            yield path, value

    def merge(self, live: Any, applied: Any, path: Path = ()) -> Any:
        """`applied` laid over `live`; neither is changed."""
        if isinstance(live, dict) and isinstance(applied, dict) and not (path and path[-1] in ATOMIC_MAPS):
            merged = dict(live)
            for name, value in applied.items():
                merged[name] = self.merge(live[name], value, (*path, name)) if name in live else value
            return merged
        if isinstance(live, list) and isinstance(applied, list) and live and (keys := self.keys(path, applied or live)):
            return self._merge_items(live, applied, keys, path)
        return applied

    def _merge_items(self, live: list[Any], applied: list[Any], keys: tuple[str, ...], path: Path) -> list[Any]:
        by_key = {item_key(item, keys): item for item in live}
        merged = []
        for item in applied:
            key = item_key(item, keys)
            merged.append(self.merge(by_key.pop(key), item, (*path, key)) if key in by_key else item)
        return merged + list(by_key.values())

    def prune(self, obj: Any, paths: Iterable[Path]) -> Any:
        """`obj` without the fields at `paths`; maps and lists that become empty go too."""
        for path in sorted(paths, key=len):
            obj = self._without(obj, path, ())
        return obj

    def _without(self, obj: Any, path: Path, at: Path) -> Any:
        if isinstance(obj, dict) and path[0] in obj:
            return self._without_in_map(obj, path, at)
        if isinstance(obj, list) and isinstance(path[0], tuple):
            return self._without_in_list(obj, path, at)
        return obj

    def _without_in_map(self, obj: dict[str, Any], path: Path, at: Path) -> dict[str, Any]:
        step, rest = path[0], path[1:]
        inner = self._without(obj[step], rest, (*at, step)) if rest else None
        is_emptied = inner in ({}, []) and obj[step] not in ({}, [])
        if not rest or is_emptied:
            return {name: value for name, value in obj.items() if name != step}
        return {**obj, step: inner}

    def _without_in_list(self, obj: list[Any], path: Path, at: Path) -> list[Any]:
        step, rest = path[0], path[1:]
        keys = self.keys(at, obj)
        if keys is None:
            return obj
        if not rest:
            return [item for item in obj if item_key(item, keys) != step]
        return [self._without(i, rest, (*at, step)) if item_key(i, keys) == step else i for i in obj]


def item_key(item: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    """What names an item of a list map; the protocol of a port defaults to TCP."""
    return tuple(item.get(key, "TCP" if key == "protocol" else None) for key in keys)
