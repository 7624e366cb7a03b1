"""Whether a given value satisfies a checked schema: used to sort out `enum` values that other keywords forbid. Pure.

Knows exactly the keywords of `schema_check.py`. Patterns are searched with Python's `re`; a pattern that it cannot
take counts as not matching, which can only drop a value.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

from forebay.engine.structured.formats import FORMATS
from forebay.engine.structured.schema_parts import Conjunction, Count, Flat, Located, References, identity, own_keywords

_MAX_DEPTH: Final = 64


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a text."""
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return False


class Judge:
    """Judges values against subschemas of one document."""

    def __init__(self, references: References) -> None:
        self._references = references
        self._listed: dict[str, frozenset[str]] = {}

    def allows(self, conjunction: Conjunction, value: Any, depth: int = 0) -> bool:
        """Whether every subschema allows the value; deeper nesting than `_MAX_DEPTH` is not allowed."""
        if depth > _MAX_DEPTH:
            return False
        return all(self._allowed(at, value, depth) for at in conjunction)

    def _allowed(self, at: Located, value: Any, depth: int) -> bool:
        flat = own_keywords(at)
        return (
            _has_type(value, flat)
            and (flat.enum is None or identity(value) in self._identities(at, flat.enum))
            and self._of_type(flat, value, depth)
            and all(self.allows((inner,), value, depth + 1) for inner in self._parts(at))
            and all(self._chosen(choice.branches, value, depth, exclusive=choice.exclusive) for choice in flat.choices)
        )

    def _identities(self, at: Located, values: tuple[Any, ...]) -> frozenset[str]:
        """The values of an `enum`, made comparable once."""
        if at.pointer not in self._listed:
            self._listed[at.pointer] = frozenset(map(identity, values))
        return self._listed[at.pointer]

    def _parts(self, at: Located) -> Iterator[Located]:
        if isinstance(at.schema, dict):
            if "$ref" in at.schema:
                yield self._references.target(at.schema["$ref"], at.pointer)
            yield from (at.sub("allOf", index) for index in range(len(at.schema.get("allOf", ()))))

    def _chosen(self, branches: Conjunction, value: Any, depth: int, *, exclusive: bool) -> bool:
        count = sum(self.allows((branch,), value, depth + 1) for branch in branches)
        return count == 1 if exclusive else count > 0

    def _of_type(self, flat: Flat, value: Any, depth: int) -> bool:
        if isinstance(value, str):
            return self._string(flat, value)
        if isinstance(value, dict):
            return self._object(flat, value, depth)
        if isinstance(value, list):
            items = enumerate(value)
            return _within(flat.size, len(value)) and all(
                self.allows(flat.item(index), item, depth + 1) for index, item in items
            )
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _in_limits(flat, Decimal(repr(value)))
        return True

    def _string(self, flat: Flat, value: str) -> bool:
        return (
            _within(flat.length, len(value))
            and all(matches(at.schema, value) for at in flat.patterns)
            and all(matches(FORMATS[name], value) for name in flat.formats)
        )

    def _object(self, flat: Flat, value: dict[str, Any], depth: int) -> bool:
        return (
            _within(flat.members, len(value))
            and all(name in value for name in flat.required)
            and all(self.allows(flat.names, name, depth + 1) for name in value)
            and all(self.allows(flat.member(name, matches), item, depth + 1) for name, item in value.items())
        )


def _within(count: Count, length: int) -> bool:
    return count.low <= length and (count.high is None or length <= count.high)


def _in_limits(flat: Flat, value: Decimal) -> bool:
    limits = flat.limits
    above = limits.low is None or value > limits.low or (value == limits.low and not limits.low_exclusive)
    below = limits.high is None or value < limits.high or (value == limits.high and not limits.high_exclusive)
    return above and below


def type_of(value: Any) -> str:
    """The JSON type of a value; whole numbers are integers."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "number"
    names: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _has_type(value: Any, flat: Flat) -> bool:
    if flat.types is None:
        return True
    kind = type_of(value)
    return kind in flat.types or (kind == "integer" and "number" in flat.types)
