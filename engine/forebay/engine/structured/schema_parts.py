"""A schema as a conjunction of parts: references, `allOf` and sibling keywords brought into one `Flat` form. Pure.

A place in a document is governed by a `Conjunction`, the subschemas that all apply there. `Resolver.flatten` joins
their keywords; `anyOf` and `oneOf` stay as choices. Reference cycles are entered a bounded number of times: `Scope`
holds what is left for each cycle. Called by `lower.py` after `schema_check.py` passed the schema.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from urllib.parse import unquote

from forebay.contract.errors import InvalidRequest
from forebay.engine.structured.numbers import Limits
from forebay.engine.structured.schema_check import TYPES, step

_NO_LIMITS: Final = Limits()
Scope = Mapping[int, int]
"""For each cycle of references that was entered: how many entries are left."""


@dataclass(frozen=True, slots=True)
class Located:
    """A subschema and its JSON pointer."""

    schema: Any
    pointer: str

    def sub(self, *path: str | int) -> "Located":
        """What is at a path below."""
        schema, pointer = self.schema, self.pointer
        for part in path:
            schema, pointer = schema[part], step(pointer, part)
        return Located(schema, pointer)


Conjunction = tuple[Located, ...]
PatternMatch = Callable[[str, str], bool]
"""Whether a pattern is found in a text."""


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """Keywords of one subschema about members. `additional` is None when the subschema does not say."""

    properties: Mapping[str, Located]
    patterns: tuple[tuple[str, Located], ...]
    additional: Located | None


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """Keywords of one subschema about items. `rest` is None when the subschema does not say."""

    prefix: tuple[Located, ...]
    rest: Located | None


@dataclass(frozen=True, slots=True)
class Choice:
    """An `anyOf` or, with `exclusive`, a `oneOf`."""

    branches: tuple[Located, ...]
    exclusive: bool
    pointer: str


@dataclass(frozen=True, slots=True)
class Count:
    """A range of lengths; `high` None is open."""

    low: int = 0
    high: int | None = None

    def both(self, other: "Count") -> "Count":
        """Lengths that both allow."""
        highs = [high for high in (self.high, other.high) if high is not None]
        return Count(max(self.low, other.low), min(highs) if highs else None)


@dataclass(frozen=True, slots=True)
class Flat:
    """All keywords that govern one place, joined. `types` and `enum` None mean that nothing was said."""

    types: frozenset[str] | None = None
    enum: tuple[Any, ...] | None = None
    limits: Limits = _NO_LIMITS
    length: Count = Count()
    patterns: tuple[Located, ...] = ()
    formats: tuple[str, ...] = ()
    objects: tuple[ObjectPart, ...] = ()
    required: tuple[str, ...] = ()
    members: Count = Count()
    names: Conjunction = ()
    arrays: tuple[ArrayPart, ...] = ()
    size: Count = Count()
    choices: tuple[Choice, ...] = ()
    conjuncts: Conjunction = ()

    def both(self, other: "Flat") -> "Flat":
        """The keywords of both."""
        return Flat(
            types=_both_types(self.types, other.types),
            enum=_both_enums(self.enum, other.enum),
            limits=self.limits.both(other.limits),
            length=self.length.both(other.length),
            patterns=self.patterns + other.patterns,
            formats=tuple(dict.fromkeys(self.formats + other.formats)),
            objects=self.objects + other.objects,
            required=tuple(dict.fromkeys(self.required + other.required)),
            members=self.members.both(other.members),
            names=self.names + other.names,
            arrays=self.arrays + other.arrays,
            size=self.size.both(other.size),
            choices=self.choices + other.choices,
            conjuncts=self.conjuncts + other.conjuncts,
        )

    def member(self, name: str, matches: PatternMatch) -> Conjunction:
        """The subschemas that govern the member of this name."""
        found: list[Located] = []
        for part in self.objects:
            own = [part.properties[name]] if name in part.properties else []
            own += [schema for pattern, schema in part.patterns if matches(pattern, name)]
            found += own or ([part.additional] if part.additional is not None else [])
        return tuple(found)

    def item(self, index: int) -> Conjunction:
        """The subschemas that govern one item."""
        found: list[Located] = []
        for part in self.arrays:
            if index < len(part.prefix):
                found.append(part.prefix[index])
            elif part.rest is not None:
                found.append(part.rest)
        return tuple(found)

    @property
    def declared(self) -> tuple[str, ...]:
        """Names of members that are named somewhere, in the order of their first mention."""
        return tuple(dict.fromkeys([*(name for part in self.objects for name in part.properties), *self.required]))

    @property
    def writes_others(self) -> bool:
        """Whether generated objects may have members that are not declared: only where the schema speaks of them."""
        says = [part.additional for part in self.objects if part.additional is not None]
        if any(at.schema is False and not part.patterns for part in self.objects if (at := part.additional)):
            return False
        return bool(says) or any(part.patterns for part in self.objects) or not self.declared

    @property
    def kinds(self) -> frozenset[str]:
        """The types that values may have; without `type`, those that the other keywords are about."""
        if self.types is not None:
            return self.types
        about = {
            "string": self.length != Count() or self.patterns or self.formats,
            "number": not self.limits.is_open,
            "object": self.objects or self.required or self.members != Count() or self.names,
            "array": self.arrays or self.size != Count(),
        }
        return frozenset(kind for kind, is_meant in about.items() if is_meant) or frozenset(TYPES)


def _both_types(left: frozenset[str] | None, right: frozenset[str] | None) -> frozenset[str] | None:
    if left is None or right is None:
        return right if left is None else left
    wide_left = left | {"integer"} if "number" in left else left
    wide_right = right | {"integer"} if "number" in right else right
    return wide_left & wide_right


def identity(value: Any) -> str:
    """Equal for values that JSON schema calls equal: 1 and 1.0 are, 1 and true are not."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _both_enums(left: tuple[Any, ...] | None, right: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    if left is None or right is None:
        return right if left is None else left
    known = {identity(value) for value in right}
    return tuple(value for value in left if identity(value) in known)


class References:
    """The local references of one schema: what they point at, and which of them lie on a cycle."""

    def __init__(self, root: Any, param: str) -> None:
        self._root = root
        self._param = param
        self._cycle: dict[str, int] = {}
        graph: dict[str, set[str]] = {}
        open_targets = set(_refs(root))
        while open_targets:
            ref = open_targets.pop()
            try:
                graph[ref] = set(_refs(self.target(ref, "#").schema))
            except InvalidRequest:  # not a reference but a value that looks like one; real ones are checked before
                graph[ref] = set()
            open_targets |= graph[ref] - graph.keys()
        self._find_cycles(graph)

    def target(self, ref: str, at: str) -> Located:
        """The subschema a reference points at; `at` is where the reference stands."""
        if ref != "#" and not ref.startswith("#/"):
            raise self._problem(at, f"$ref {ref[:100]!r} is not supported; references must be local (#/...)")
        located = Located(self._root, "#")
        for part in ref.split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                located = located.sub(int(name) if isinstance(located.schema, list) else name)
            except (KeyError, IndexError, TypeError, ValueError):
                raise self._problem(at, f"$ref {ref[:100]!r} points at nothing") from None
        if not isinstance(located.schema, dict | bool):
            raise self._problem(at, f"$ref {ref[:100]!r} does not point at a schema")
        return located

    def enter(self, ref: str, scope: Scope, most: int) -> Scope | None:
        """The scope inside a reference; None when its cycle may not be entered again.

        Outside of cycles the scope becomes empty: nothing below can come back.
        """
        cycle = self._cycle.get(ref)
        if cycle is None:
            return {}
        left = scope.get(cycle, most * self._sizes[cycle])
        return {cycle: left - 1} if left > 0 else None

    def refuse_loops(self) -> None:
        """Refuse references that lead back to themselves without going into a member or an item."""
        here: dict[str, set[str]] = {}
        for ref in self._cycle:
            here[ref] = set(_refs_in_place(self.target(ref, "#").schema)) & self._cycle.keys()
        for ref in here:
            if ref in _reachable(here, ref):
                raise self._problem(ref, "$ref leads back to itself without going into a member or an item")

    def _find_cycles(self, graph: Mapping[str, set[str]]) -> None:
        """Number the cycles: references that reach each other share a number."""
        reach = {ref: _reachable(graph, ref) for ref in graph}
        self._sizes: dict[int, int] = {}
        for number, ref in enumerate(graph):
            if ref in reach[ref] and ref not in self._cycle:
                members = [other for other in reach[ref] if ref in reach[other]]
                self._sizes[number] = len(members)
                self._cycle |= dict.fromkeys(members, number)

    def _problem(self, pointer: str, text: str) -> InvalidRequest:
        return InvalidRequest(f"{self._param}: at {pointer[:400]}: {text}", param=self._param)


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    open_refs = list(graph[start])
    while open_refs:
        ref = open_refs.pop()
        if ref not in found:
            found.add(ref)
            open_refs += graph[ref] - found
    return found


def _refs_in_place(schema: Any) -> Iterator[str]:
    """References that govern the same value as the subschema does."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"]
        for keyword in ("allOf", "anyOf", "oneOf"):
            for inner in schema.get(keyword, ()):
                yield from _refs_in_place(inner)


def _refs(schema: Any) -> Iterator[str]:
    """References in a subschema; what looks like one inside a constant counts too, which is harmless."""
    if isinstance(schema, dict):
        ref = schema.get("$ref")
        if isinstance(ref, str):
            yield ref
        for inner in schema.values():
            yield from _refs(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _refs(inner)


def own_keywords(at: Located) -> Flat:
    """The keywords of one subschema, without `$ref` and `allOf`."""
    schema = at.schema
    if schema is True:
        return Flat(conjuncts=(at,))
    if schema is False:
        return Flat(types=frozenset(), conjuncts=(at,))
    types = schema.get("type")
    return Flat(
        types=None if types is None else frozenset([types] if isinstance(types, str) else types),
        enum=_enum(schema),
        limits=_limits(schema),
        length=_count(schema, "Length"),
        patterns=(at.sub("pattern"),) if "pattern" in schema else (),
        formats=(schema["format"],) if "format" in schema else (),
        objects=_object_parts(at),
        required=tuple(schema.get("required", ())),
        members=_count(schema, "Properties"),
        names=(at.sub("propertyNames"),) if "propertyNames" in schema else (),
        arrays=_array_parts(at),
        size=_count(schema, "Items"),
        choices=tuple(_choices(at)),
        conjuncts=(at,),
    )


def _enum(schema: Mapping[str, Any]) -> tuple[Any, ...] | None:
    values = tuple(schema["enum"]) if "enum" in schema else None
    return _both_enums(values, (schema["const"],) if "const" in schema else None)


def _count(schema: Mapping[str, Any], noun: str) -> Count:
    high = schema.get(f"max{noun}")
    return Count(int(schema.get(f"min{noun}", 0)), None if high is None else int(high))


def _limits(schema: Mapping[str, Any]) -> Limits:
    limits = Limits()
    for keyword, make in _LIMITS.items():
        if keyword in schema:
            limits = limits.both(make(Decimal(repr(schema[keyword]))))
    return limits


_LIMITS: Final[dict[str, Callable[[Decimal], Limits]]] = {
    "minimum": lambda bound: Limits(low=bound),
    "maximum": lambda bound: Limits(high=bound),
    "exclusiveMinimum": lambda bound: Limits(low=bound, low_exclusive=True),
    "exclusiveMaximum": lambda bound: Limits(high=bound, high_exclusive=True),
}


def _object_parts(at: Located) -> tuple[ObjectPart, ...]:
    schema = at.schema
    if not schema.keys() & {"properties", "patternProperties", "additionalProperties"}:
        return ()
    properties = {name: at.sub("properties", name) for name in schema.get("properties", {})}
    patterns = tuple((name, at.sub("patternProperties", name)) for name in schema.get("patternProperties", {}))
    additional = at.sub("additionalProperties") if "additionalProperties" in schema else None
    return (ObjectPart(properties, patterns, additional),)


def _array_parts(at: Located) -> tuple[ArrayPart, ...]:
    schema = at.schema
    if not schema.keys() & {"prefixItems", "items"}:
        return ()
    prefix = tuple(at.sub("prefixItems", index) for index in range(len(schema.get("prefixItems", ()))))
    return (ArrayPart(prefix, at.sub("items") if "items" in schema else None),)


def _choices(at: Located) -> Iterator[Choice]:
    for keyword in ("anyOf", "oneOf"):
        if keyword in at.schema:
            branches = tuple(at.sub(keyword, index) for index in range(len(at.schema[keyword])))
            yield Choice(branches, keyword == "oneOf", step(at.pointer, keyword))
