"""A corpus of JSON schemas, made in families: each keyword alone, in its corners, and together as in real requests.

The families follow what the public test suites of JSON schema cover; the schemas are our own. `CORPUS` maps a name to
a schema. All of them are supported and satisfiable.
"""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any] | bool
_TEXT: Schema = {"type": "string", "maxLength": 6}


def _object(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


def _strings() -> Iterator[Schema]:
    for low in (0, 1, 5):
        for high in (low, low + 1, low + 9):
            yield {"type": "string", "minLength": low, "maxLength": high}
    yield {"type": "string"}
    yield {"type": "string", "minLength": 20}
    patterns = ["^a*$", "^(foo|bar)+$", r"^\d{3}-\d{4}$", "^[^aeiou]{1,4}$", r"\S", "b", r"^\w+\s\w+$", "^.?$"]
    patterns += ["^é+$", r"^[\u3041-\u3096]{2,3}$", r"^\\$", '^"quoted"$', r"^a\/b$", "x$", "^y", "^(a|(b|c){2})$"]
    patterns += [r"^(?:[A-F0-9]{2}:){2}[A-F0-9]{2}$", r"^\$[1-9]\d{0,2}(,\d{3})*$", "^$", r"^[-+]?\d+$"]
    for pattern in patterns:
        yield {"type": "string", "pattern": pattern}
    for pattern in ("^a*$", r"\d", "^[a-z]+$"):
        yield {"type": "string", "pattern": pattern, "minLength": 2, "maxLength": 5}
    for name in ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"):
        yield {"type": "string", "format": name}
    yield {"type": "string", "format": "email", "maxLength": 12}


def _numbers() -> Iterator[Schema]:
    for kind in ("integer", "number"):
        yield {"type": kind}
        for low, high in ((0, 0), (0, 9), (-5, 5), (7, 123), (-1000, -998), (99, 101), (-1, 100000)):
            yield {"type": kind, "minimum": low, "maximum": high}
        yield {"type": kind, "minimum": 3}
        yield {"type": kind, "maximum": -3}
        yield {"type": kind, "exclusiveMinimum": 0}
        yield {"type": kind, "exclusiveMinimum": 0, "exclusiveMaximum": 2}
        yield {"type": kind, "minimum": 10**12}
    for least, most in ((0.5, 0.75), (-0.25, 0.125), (1.1, 1.11), (-3.5, -3.25), (0.000001, 0.00001), (1e-3, 1e3)):
        yield {"type": "number", "minimum": least, "maximum": most}
        yield {"type": "number", "exclusiveMinimum": least, "exclusiveMaximum": most}


def _values() -> Iterator[Schema]:
    constants: list[Any] = [1, 1.5, "a", "", None, True, [], {}, [1, {"a": [None]}], 'q"\\\n', "日本"]
    yield from ({"const": value} for value in constants)
    yield {"enum": ["red", "green", "blue"]}
    yield {"enum": [1, "1", None, [1], {"one": 1}]}
    yield {"enum": [1, 2, 3, 4], "minimum": 2, "maximum": 3}
    yield {"type": "string", "enum": ["a", 1, "ccc"], "maxLength": 1}
    yield {"enum": [f"value-{place}" for place in range(300)]}
    yield {"type": "boolean"}
    yield {"type": "null"}
    yield {"type": ["string", "null"], "maxLength": 3}
    yield {"type": ["integer", "boolean", "array"], "items": {"type": "null"}, "maximum": 5}
    yield True
    yield {}
    yield {"title": "nothing but a title", "description": "and a description", "examples": [1]}


def _arrays() -> Iterator[Schema]:
    for low, high in ((0, 0), (0, 1), (1, 1), (2, 4), (5, 5)):
        yield {"type": "array", "items": {"type": "integer"}, "minItems": low, "maxItems": high}
    yield {"type": "array"}
    yield {"type": "array", "items": False}
    yield {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1}}
    pair: list[Schema] = [{"type": "integer"}, _TEXT]
    yield {"type": "array", "prefixItems": pair}
    yield {"type": "array", "prefixItems": pair, "items": False}
    yield {"type": "array", "prefixItems": pair, "items": False, "minItems": 2}
    yield {"type": "array", "prefixItems": pair, "items": {"type": "null"}, "minItems": 1, "maxItems": 4}
    yield {"type": "array", "prefixItems": pair, "items": {"type": "null"}, "minItems": 3}
    yield {"type": "array", "prefixItems": pair, "minItems": 4, "maxItems": 5}
    yield {"type": "array", "prefixItems": [{"type": "null"}, False], "items": True}
    yield {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": False}


def _objects() -> Iterator[Schema]:
    three = {name: {"type": "integer"} for name in "abc"}
    for required in ((), ("a",), ("b",), ("c",), ("a", "c"), ("a", "b", "c")):
        yield _object(three, *required)
        yield _object(three, *required, additionalProperties=False)
    yield _object(three, additionalProperties={"type": "boolean"})
    yield _object(three, "b", additionalProperties=True)
    for low, high in ((0, 1), (1, 1), (2, 2), (1, 2), (3, 3), (2, 9)):
        yield _object(three, minProperties=low, maxProperties=high)
    yield {"type": "object"}
    yield {"type": "object", "additionalProperties": False}
    yield {"type": "object", "maxProperties": 0}
    yield {"type": "object", "minProperties": 1, "maxProperties": 2}
    yield {"type": "object", "additionalProperties": {"type": "string", "maxLength": 2}, "maxProperties": 3}
    yield {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "null"}}}
    yield {"type": "object", "required": ["x", "y"]}
    yield _object({"a": True, "b": False}, "a")
    yield {"type": "object", "patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": False}
    yield {
        "type": "object",
        "patternProperties": {"^x_": {"type": "integer"}},
        "additionalProperties": {"type": "null"},
    }
    patterns = {"^a": {"type": "integer"}, "z$": {"type": "boolean"}}
    yield {"type": "object", "patternProperties": patterns, "additionalProperties": False}
    yield _object({"x_1": {"minimum": 5}}, "x_1", patternProperties={"^x_": {"type": "integer"}})
    yield {"type": "object", "propertyNames": {"pattern": "^[a-c]+$"}, "additionalProperties": {"type": "null"}}
    yield {"type": "object", "propertyNames": {"enum": ["p", "q"]}, "additionalProperties": {"type": "integer"}}
    yield {"type": "object", "propertyNames": {"maxLength": 1}, "additionalProperties": {"type": "integer"}}
    yield _object({'quote"': _TEXT, "back\\slash": _TEXT, "line\nend": _TEXT, "": _TEXT, "日本": _TEXT}, "", "日本")
    yield _object({f"p{place}": {"type": "boolean"} for place in range(40)}, "p0", "p39")
    yield _object({"ab": {"type": "null"}, "abc": {"type": "null"}, "b": {"type": "null"}}, additionalProperties=True)


def _joined() -> Iterator[Schema]:
    number, text = {"type": "integer", "minimum": 0, "maximum": 99}, {"type": "string", "maxLength": 4}
    yield {"anyOf": [number, text]}
    yield {"anyOf": [number, {"type": "null"}]}
    yield {"oneOf": [number, text]}
    yield {"oneOf": [{"const": 1}, {"const": 2}]}
    yield {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 4}]}
    yield {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3}]}
    kinds = [_object({"kind": {"const": name}, name: number}, "kind", name) for name in ("cat", "dog", "emu")]
    yield {"oneOf": kinds}
    yield {"oneOf": kinds, "discriminator": {"propertyName": "kind"}}
    yield {"anyOf": kinds, "required": ["kind"]}
    yield {"oneOf": [_object({"a": number}, "a"), _object({"b": number}, "b")]}
    yield {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 5}]}
    yield {"allOf": [_object({"a": number}, "a"), _object({"b": text}, "b")]}
    yield {"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "z$"}, {"maxLength": 5}]}
    yield {"allOf": [_object({"a": {"type": "integer"}}), {"properties": {"a": {"minimum": 7}}, "required": ["a"]}]}
    yield {"type": "object", "properties": {"a": number}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    yield {"anyOf": [{"minLength": 2}, {"maxLength": 1}], "type": "string", "maxLength": 3}
    yield {"allOf": [{"anyOf": [{"const": 1}, {"const": 2}]}, {"anyOf": [{"const": 2}, {"const": 3}]}]}
    yield {"anyOf": [False, {"type": "boolean"}]}
    yield {"allOf": [True, {"type": "null"}]}
    yield {"type": "array", "allOf": [{"items": {"type": "integer"}}, {"items": {"maximum": 5}}], "maxItems": 2}
    yield {
        "type": "array",
        "allOf": [{"prefixItems": [number]}, {"items": {"type": ["integer", "null"]}}],
        "minItems": 2,
    }


def _references() -> Iterator[Schema]:
    node = _object(
        {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "value", "next"
    )
    yield {"$defs": {"node": node}, "$ref": "#/$defs/node"}
    tree = _object({"left": {"$ref": "#"}, "right": {"$ref": "#"}, "v": {"type": "integer"}}, "v")
    yield tree
    yield {"$defs": {"n": {"type": "integer", "minimum": 5}}, "type": "array", "items": {"$ref": "#/$defs/n"}}
    yield {"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n", "minimum": 5, "maximum": 6}
    yield {"definitions": {"n": {"type": "null"}}, "properties": {"a": {"$ref": "#/definitions/n"}}, "required": ["a"]}
    yield _object({"a": {"type": "boolean"}, "b": {"$ref": "#/properties/a"}}, "a", "b")
    yield {
        "$defs": {"a/b": {"const": 1}, "c~d": {"const": 2}},
        "anyOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/c~0d"}],
    }
    ping = _object({"pong": {"$ref": "#/$defs/pong"}})
    pong = _object({"ping": {"$ref": "#/$defs/ping"}})
    yield {"$defs": {"ping": ping, "pong": pong}, "$ref": "#/$defs/ping"}
    menu = _object({"label": _TEXT, "items": {"type": "array", "items": {"$ref": "#/$defs/menu"}}}, "label")
    yield {"$defs": {"menu": menu}, "type": "array", "items": {"$ref": "#/$defs/menu"}}
    leaf = _object({"leaf": {"type": "integer"}}, "leaf", additionalProperties=False)
    inner = _object(
        {"kids": {"type": "array", "items": {"$ref": "#/$defs/t"}, "minItems": 1}}, "kids", additionalProperties=False
    )
    yield {"$defs": {"t": {"oneOf": [leaf, inner]}}, "$ref": "#/$defs/t"}
    base = _object({"id": {"type": "integer"}}, "id")
    child = {"allOf": [{"$ref": "#/$defs/base"}, _object({"child": {"$ref": "#/$defs/child"}})]}
    yield {"$defs": {"base": base, "child": child}, "$ref": "#/$defs/child"}
    yield {
        "$defs": {"json": {"type": ["null", "boolean", "array"], "items": {"$ref": "#/$defs/json"}}},
        "$ref": "#/$defs/json",
    }


def _requests() -> Iterator[Schema]:
    person = _object({"name": _TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 150}}, "name", "age")
    strict = {**person, "additionalProperties": False}
    yield person
    yield strict
    yield {"type": "array", "items": strict, "minItems": 1, "maxItems": 3}
    line = _object(
        {"sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, "quantity": {"type": "integer", "minimum": 1}},
        "sku",
        "quantity",
    )
    total = {"type": "number", "minimum": 0, "exclusiveMaximum": 10000}
    yield _object(
        {"id": {"type": "string", "format": "uuid"}, "lines": {"type": "array", "items": line}, "total": total},
        "id",
        "lines",
    )
    event = _object(
        {"at": {"type": "string", "format": "date-time"}, "level": {"enum": ["info", "warn"]}, "data": {}},
        "at",
        "level",
    )
    yield event
    yield _object({"city": _TEXT, "unit": {"enum": ["celsius", "fahrenheit"], "default": "celsius"}}, "city")
    yield _object(
        {
            "steps": {
                "type": "array",
                "items": _object({"explanation": _TEXT, "output": _TEXT}, "explanation", "output"),
            },
            "answer": _TEXT,
        },
        "steps",
        "answer",
    )
    optional = {"anyOf": [_TEXT, {"type": "null"}]}
    yield _object(
        {"first": optional, "second": optional, "third": optional},
        "first",
        "second",
        "third",
        additionalProperties=False,
    )


def _nested_requests() -> Iterator[Schema]:
    point = {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}], "items": False, "minItems": 2}
    geometry = [_object({"type": {"const": "Point"}, "coordinates": point}, "type", "coordinates")]
    geometry += [
        _object(
            {"type": {"const": "Line"}, "coordinates": {"type": "array", "items": point, "minItems": 2, "maxItems": 3}},
            "type",
            "coordinates",
        )
    ]
    yield {"oneOf": geometry}
    yield _object(
        {
            "tags": {"type": "object", "additionalProperties": _TEXT},
            "labels": {"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": _TEXT},
        },
        "tags",
    )
    yield _object({"a": _object({"b": _object({"c": _object({"d": {"type": "integer"}}, "d")}, "c")}, "b")}, "a")
    yield _object({"ok": {"const": True}, "error": False}, "ok")


_FAMILIES = {
    "strings": _strings,
    "numbers": _numbers,
    "values": _values,
    "arrays": _arrays,
    "objects": _objects,
    "joined": _joined,
    "references": _references,
    "requests": _requests,
    "nested": _nested_requests,
}
CORPUS: dict[str, Schema] = {
    f"{family}-{place}": schema for family, make in _FAMILIES.items() for place, schema in enumerate(make())
}
