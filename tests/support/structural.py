"""A reading of structural schemas without an API server: what would be refused at apply, and with which words.

Covers the keywords that Forebay's CRDs use: types, bounds, enums, required and unknown fields, list sets and list
maps, and CEL rules. Messages follow the API server's closely enough for tests to look for the same fragments in both.
As the API server does, nulls of absent fields are dropped first and CEL runs only where the shape is right.
"""

import functools
import json
from collections.abc import Iterator
from typing import Any

import cel

from forebay.api.quantity import parse_quantity
from forebay.contract.errors import InvalidSpec

Schema = dict[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def problems(schema: Schema, value: Any, path: str = "") -> list[str]:
    """Every problem of `value` as "path: message"; empty when the API server would take it."""
    value = _without_nulls(schema, value)
    return list(_problems(schema, value, path))


def evaluate_cel(expression: str, value: Any) -> bool:
    """The CEL expression over `self`; an error of the evaluation counts as false, as in the API server."""
    context = cel.Context()
    context.add_variable("self", value)
    # Kubernetes' own CEL library, as far as the rules use it; amounts are doubles here.
    context.add_function("isQuantity", _is_quantity)
    context.add_function("quantity", lambda text: float(parse_quantity(text)))
    context.add_function("compareTo", lambda left, right: (left > right) - (left < right))
    try:
        return _program(expression).execute(context) is True
    except (RuntimeError, TypeError, ValueError):
        return False


def _is_quantity(text: str) -> bool:
    try:
        parse_quantity(text)
    except InvalidSpec:
        return False
    return True


@functools.cache
def _program(expression: str) -> Any:
    return cel.compile(expression)


def _without_nulls(schema: Schema, value: Any) -> Any:
    if isinstance(value, dict) and "properties" in schema:
        fields = schema["properties"]
        return {
            name: _without_nulls(fields.get(name, {}), item)
            for name, item in value.items()
            if not (item is None and name in fields)
        }
    if isinstance(value, list) and "items" in schema:
        return [_without_nulls(schema["items"], item) for item in value]
    return value


def _problems(schema: Schema, value: Any, path: str) -> Iterator[str]:
    shape = list(_shape_problems(schema, value, path))
    yield from shape
    if shape:
        return
    for rule in schema.get("x-kubernetes-validations", []):
        # Rules about a change are not asked when an object is created.
        if "oldSelf" in rule["rule"]:
            continue
        if not evaluate_cel(rule["rule"], _typed(schema, value)):
            at = f"{path}{rule.get('fieldPath', '')}".removeprefix(".")
            yield f"{at or '<root>'}: Invalid value: {rule['message']}"


def _shape_problems(schema: Schema, value: Any, path: str) -> Iterator[str]:
    if schema.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, int | str) and not isinstance(value, bool)
        yield from _bound_problems(schema, value, path) if fits else [f"{path}: must be of type integer or string"]
        return
    if "type" not in schema:
        return
    kind: str = schema["type"]
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        yield f"{path}: Invalid value: must be of type {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: Unsupported value: {json.dumps(value)}: supported values: {json.dumps(schema['enum'])[1:-1]}"
    yield from _bound_problems(schema, value, path)
    if isinstance(value, dict):
        yield from _object_problems(schema, value, path)
    elif isinstance(value, list):
        yield from _array_problems(schema, value, path)


def _bound_problems(schema: Schema, value: Any, path: str) -> Iterator[str]:
    match value:
        case bool():
            return
        case int() | float():
            size, low, high, words = value, "minimum", "maximum", "be {} or equal to {}"
        case str():
            size, low, high, words = len(value), "minLength", "maxLength", "be at {} {} chars long"
        case list():
            size, low, high, words = len(value), "minItems", "maxItems", "have at {} {} items"
        case _:
            size, low, high, words = len(value), "minProperties", "maxProperties", "have at {} {} properties"
    numeric = low == "minimum"
    if low in schema and size < schema[low]:
        yield f"{path}: Invalid value: should {words.format('greater than' if numeric else 'least', schema[low])}"
    if high in schema and size > schema[high]:
        yield f"{path}: Invalid value: should {words.format('less than' if numeric else 'most', schema[high])}"


def _object_problems(schema: Schema, value: dict[str, Any], path: str) -> Iterator[str]:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    if "additionalProperties" in schema:
        for name, item in value.items():
            yield from _problems(schema["additionalProperties"], item, f"{path}[{name}]")
        return
    fields = schema.get("properties")
    if fields is None:
        return
    for name in schema.get("required", []):
        if name not in value:
            yield f"{path}.{name}: Required value".removeprefix(".")
    for name, item in value.items():
        at = f"{path}.{name}".removeprefix(".")
        if name not in fields:
            yield f'{at}: unknown field "{at}"'
        else:
            yield from _problems(fields[name], item, at)


def _array_problems(schema: Schema, value: list[Any], path: str) -> Iterator[str]:
    found = [
        problem for index, item in enumerate(value) for problem in _problems(schema["items"], item, f"{path}[{index}]")
    ]
    # Identities can only be compared where every item has the right shape.
    yield from found or _duplicates(schema, value, path)


def _duplicates(schema: Schema, value: list[Any], path: str) -> Iterator[str]:
    if schema.get("x-kubernetes-list-type") not in {"set", "map"}:
        return
    keys = schema.get("x-kubernetes-list-map-keys")
    seen: list[Any] = []
    for index, item in enumerate(value):
        identity = item if keys is None else {key: item[key] for key in keys}
        if identity in seen:
            yield f"{path}[{index}]: Duplicate value: {json.dumps(identity, separators=(',', ':'))}"
        seen.append(identity)


def _typed(schema: Schema, value: Any) -> Any:
    """The value as CEL sees it: numbers of type `number` are doubles."""
    if schema.get("type") == "number":
        return float(value)
    if isinstance(value, dict) and "properties" in schema:
        return {name: _typed(schema["properties"].get(name, {}), item) for name, item in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [_typed(schema["items"], item) for item in value]
    return value
