"""pydantic models to structural schemas, the part of OpenAPI v3 that the API server accepts in a CRD.

`structural` inlines references, drops what only pydantic needs (titles, null variants, null defaults) and refuses
what Kubernetes cannot hold or cannot price: unbounded lists, maps and strings (the CEL cost budget needs bounds),
lists of objects without a merge rule, unions, recursion and any keyword outside the allow-list. It never emits a
default, so the API server adds nothing to a stored object.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from forebay.api.rules import VALIDATIONS
from forebay.api.shape import INT_OR_STRING, LIST_MAP_KEYS, LIST_TYPE, MAP_TYPE, PRESERVE_UNKNOWN

JsonSchema = dict[str, Any]

_DROPPED = frozenset({"title", "default", "$defs"})
_KEPT = (
    "description",
    "type",
    "format",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "properties",
    "items",
    "additionalProperties",
    INT_OR_STRING,
    LIST_MAP_KEYS,
    LIST_TYPE,
    MAP_TYPE,
    PRESERVE_UNKNOWN,
    VALIDATIONS,
)


class SchemaError(Exception):
    """A model that has no structural schema; the message names the field."""


def structural(model: type[BaseModel], *, without: frozenset[str] = frozenset()) -> JsonSchema:
    """The structural schema of `model`, keywords in a stable order; raises `SchemaError`.

    `without` names top-level fields whose schema the API server owns.
    """
    document = model.model_json_schema(by_alias=True, mode="validation")
    for name in without:
        document["properties"].pop(name)
    return _convert(document, _Context(document.get("$defs", {}), path=model.__name__, open_refs=()))


class _Context:
    """Where a conversion is: the definitions, the path for messages, and the references being inlined."""

    def __init__(self, defs: Mapping[str, JsonSchema], path: str, open_refs: tuple[str, ...]) -> None:
        self.defs = defs
        self.path = path
        self.open_refs = open_refs

    def child(self, name: str) -> "_Context":
        return _Context(self.defs, f"{self.path}.{name}", self.open_refs)

    def entering(self, ref: str) -> "_Context":
        if ref in self.open_refs:
            raise SchemaError(f"{self.path}: recursion through {ref}")
        return _Context(self.defs, self.path, (*self.open_refs, ref))

    def error(self, text: str) -> SchemaError:
        return SchemaError(f"{self.path}: {text}")


def _convert(node: JsonSchema, context: _Context) -> JsonSchema:
    node, context = _resolved(node, context)
    node = {name: value for name, value in node.items() if name not in _DROPPED}
    if "const" in node:
        node["enum"] = [node.pop("const")]
    if node.get("additionalProperties") is False:
        del node["additionalProperties"]
    unknown = sorted(set(node) - set(_KEPT))
    if unknown:
        raise context.error(f"keyword {unknown[0]} has no place in a structural schema")
    if PRESERVE_UNKNOWN not in node and INT_OR_STRING not in node:
        node = _converted_by_type(node, context)
    return {name: node[name] for name in _KEPT if name in node}


def _resolved(node: JsonSchema, context: _Context) -> tuple[JsonSchema, _Context]:
    """Follow references and optional wrappers; what stands beside them wins over what they point to."""
    while "$ref" in node or "anyOf" in node:
        beside = {name: value for name, value in node.items() if name not in {"$ref", "anyOf", "default"}}
        if "$ref" in node:
            ref = node["$ref"].removeprefix("#/$defs/")
            context = context.entering(ref)
            node = {**context.defs[ref], **beside}
        else:
            node = {**_only_variant(node["anyOf"], context), **beside}
    return node, context


def _only_variant(variants: list[JsonSchema], context: _Context) -> JsonSchema:
    present = [variant for variant in variants if variant.get("type") != "null"]
    if len(present) != 1:
        raise context.error("a union is one optional sub-object for each variant, not anyOf")
    return present[0]


def _converted_by_type(node: JsonSchema, context: _Context) -> JsonSchema:
    match node.get("type"):
        case "object":
            return _object(node, context)
        case "array":
            return _array(node, context)
        case "string":
            if "enum" not in node and "maxLength" not in node:
                raise context.error("a string needs maxLength")
            return node
        case "integer":
            return {**node, "format": "int32" if node.get("maximum", 2**63) < 2**31 else "int64"}
        case "number" | "boolean":
            return node
        case other:
            raise context.error(f"type {other!r} has no place in a structural schema")


def _object(node: JsonSchema, context: _Context) -> JsonSchema:
    if "properties" in node:
        properties = {name: _convert(value, context.child(name)) for name, value in node["properties"].items()}
        return {**node, "properties": properties}
    values = node.get("additionalProperties")
    if not isinstance(values, dict):
        raise context.error("a map needs a schema for its values")
    if "maxProperties" not in node:
        raise context.error("a map needs maxProperties")
    return {**node, "additionalProperties": _convert(values, context.child("*"))}


def _array(node: JsonSchema, context: _Context) -> JsonSchema:
    if "maxItems" not in node:
        raise context.error("a list needs maxItems")
    if not isinstance(node.get("items"), dict):
        raise context.error("a list needs one schema for its items")
    items = _convert(node["items"], context.child("[]"))
    if LIST_TYPE not in node:
        raise context.error("a list needs a merge rule: MapKey, UniqueItems or ATOMIC_LIST")
    missing = [key for key in node.get(LIST_MAP_KEYS, []) if key not in items.get("required", [])]
    if missing:
        raise context.error(f"merge key {missing[0]} must be a required field of the items")
    return {**node, "items": items}
