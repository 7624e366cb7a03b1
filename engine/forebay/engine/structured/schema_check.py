"""The up-front check of a JSON schema: every keyword anywhere is one that is enforced, or the schema is refused.

Pure. The supported keywords are those of the tables here; docs/structured-output.md lists them. A keyword that would
have to be ignored or approximated is an `InvalidRequest` that names it and its JSON pointer. Sizes are bounded.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from forebay.contract.errors import InvalidRequest
from forebay.engine.structured.formats import FORMATS

MAX_NODES: Final = 5000
MAX_DEPTH: Final = 64
MAX_COUNT: Final = 4096
MAX_LENGTH: Final = 65_536
TYPES: Final = ("string", "number", "integer", "boolean", "null", "object", "array")
_DIALECTS: Final = ("draft/2020-12/schema", "draft/2019-09/schema", "draft-07/schema")
_ANNOTATIONS: Final = frozenset(
    {
        "$comment",
        "$id",
        "$schema",
        "default",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)
_SCHEMAS: Final = frozenset({"additionalProperties", "items", "propertyNames"})
_MAPS: Final = frozenset({"$defs", "definitions", "patternProperties", "properties"})
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == int(value) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_VALUES: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "$ref": (lambda value: isinstance(value, str), "a string"),
    "const": (lambda _: True, ""),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a non-empty array"),
    "exclusiveMaximum": (_is_number, "a number"),
    "exclusiveMinimum": (_is_number, "a number"),
    "format": (lambda value: value in FORMATS, f"one of the formats that are enforced ({', '.join(FORMATS)})"),
    "maxItems": (_is_count, "a count"),
    "maxLength": (_is_count, "a count"),
    "maxProperties": (_is_count, "a count"),
    "maximum": (_is_number, "a number"),
    "minItems": (lambda value: _is_count(value) and value <= MAX_COUNT, f"a count up to {MAX_COUNT}"),
    "minLength": (lambda value: _is_count(value) and value <= MAX_LENGTH, f"a count up to {MAX_LENGTH}"),
    "minProperties": (lambda value: _is_count(value) and value <= MAX_COUNT, f"a count up to {MAX_COUNT}"),
    "minimum": (_is_number, "a number"),
    "pattern": (lambda value: isinstance(value, str), "a string"),
    "required": (_is_names, "an array of strings"),
    "type": (_is_type, f"one or more of {', '.join(TYPES)}"),
    "uniqueItems": (lambda value: value is False, "false: distinct items cannot be enforced"),
}
SUPPORTED: Final = tuple(sorted({*_VALUES, *_SCHEMAS, *_MAPS, *_LISTS}))
"""Keywords that are enforced, for docs and tests."""


def step(pointer: str, part: str | int) -> str:
    """A JSON pointer (as a URI fragment, unescaped but for the pointer's own escapes) one step deeper."""
    return f"{pointer}/{str(part).replace('~', '~0').replace('/', '~1')}"


class SchemaCheck:
    """One walk over a schema. `param` is the request field that errors name; `refs` are (reference, its place)."""

    def __init__(self, param: str) -> None:
        self._param = param
        self._nodes = 0
        self.refs: list[tuple[str, str]] = []

    def problem(self, pointer: str, text: str) -> InvalidRequest:
        """An error about one place of the schema."""
        return InvalidRequest(f"{self._param}: at {pointer[:400]}: {text}", param=self._param)

    def check(self, schema: Any, pointer: str = "#", depth: int = 0) -> None:
        """Raise `InvalidRequest` for the first thing that cannot be enforced."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise self.problem(pointer, f"the schema has more than {MAX_NODES} subschemas")
        if depth > MAX_DEPTH:
            raise self.problem(pointer, f"the schema is nested deeper than {MAX_DEPTH}")
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise self.problem(pointer, "a schema must be an object or a boolean")
        for keyword, value in schema.items():
            for place, inner in self._keyword(keyword, value, pointer):
                self.check(inner, place, depth + 1)

    def _keyword(self, keyword: str, value: Any, pointer: str) -> Iterator[tuple[str, Any]]:
        """Check one keyword; the subschemas in it come out with their places."""
        place = step(pointer, keyword)
        if keyword in _SCHEMAS:
            yield place, value
        elif keyword in _MAPS:
            if not isinstance(value, dict):
                raise self.problem(place, f"{keyword} must be an object")
            yield from ((step(place, name), inner) for name, inner in value.items())
        elif keyword in _LISTS:
            if not isinstance(value, list) or not value:
                raise self.problem(place, f"{keyword} must be a non-empty array")
            yield from ((step(place, index), inner) for index, inner in enumerate(value))
        else:
            self._value(keyword, value, place)

    def _value(self, keyword: str, value: Any, place: str) -> None:
        if keyword in _ANNOTATIONS:
            self._annotation(keyword, value, place)
            return
        if keyword not in _VALUES:
            raise self.problem(place, f"the keyword {keyword[:60]!r} is not supported; it cannot be enforced")
        is_valid, expected = _VALUES[keyword]
        if not is_valid(value):
            raise self.problem(place, f"{keyword} must be {expected}")
        if keyword == "$ref":
            self.refs.append((value, place))

    def _annotation(self, keyword: str, value: Any, place: str) -> None:
        if keyword == "$schema" and not (isinstance(value, str) and value.rstrip("#").endswith(_DIALECTS)):
            raise self.problem(place, "the dialect is not supported; use draft 2020-12")
        if keyword == "$id" and place != "#/$id":
            raise self.problem(place, "$id inside a schema is not supported; references are local")
