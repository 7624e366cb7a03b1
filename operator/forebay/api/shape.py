"""The base of all API models, the schema markers, and `parse`, which turns an object into a model or `InvalidSpec`.

Specs are strict: unknown fields and wrong JSON types are errors, as under kubectl's strict field validation. Status
models ignore unknown fields, because a newer operator may have written them. No model carries a default that would
be written back: an absent field is None, and what it resolves to appears in `status.effective` only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from forebay.api.rules import VALIDATIONS, Rule
from forebay.contract.errors import InvalidSpec

LIST_TYPE = "x-kubernetes-list-type"
LIST_MAP_KEYS = "x-kubernetes-list-map-keys"
MAP_TYPE = "x-kubernetes-map-type"
PRESERVE_UNKNOWN = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"


class Shape(BaseModel):
    """An object of a spec: frozen, strict, camelCase in JSON, with the rules of its class."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=to_camel, use_attribute_docstrings=True
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        for rule in self.rules:
            rule.check(self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        document = handler.resolve_ref_schema(handler(schema))
        if cls.rules:
            document[VALIDATIONS] = [rule.to_json() for rule in cls.rules]
        return document


class StatusShape(Shape):
    """An object of a status: as `Shape`, but fields of a newer operator are ignored."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True, slots=True)
class MapKey:
    """Marks a list of objects that Kubernetes merges by `keys`: one-word field names, together unique."""

    keys: tuple[str, ...]

    def __init__(self, *keys: str) -> None:
        object.__setattr__(self, "keys", keys)

    def check(self, items: list[Any]) -> list[Any]:
        """Return `items`, or raise when two share a key."""
        what = f"{' '.join(self.keys)} "
        _refuse_duplicates([" ".join(str(getattr(item, key)) for key in self.keys) for item in items], what)
        return items

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), LIST_TYPE: "map", LIST_MAP_KEYS: list(self.keys)}


@dataclass(frozen=True, slots=True)
class UniqueItems:
    """Marks a list of scalars that Kubernetes merges as a set; a repeated item is an error."""

    def check(self, items: list[Any]) -> list[Any]:
        """Return `items`, or raise when one is repeated."""
        _refuse_duplicates(items, "")
        return items

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), LIST_TYPE: "set"}


@dataclass(frozen=True, slots=True)
class SchemaExtra:
    """Adds Kubernetes keywords to the schema of a field, or replaces it whole; validation is unchanged."""

    keywords: tuple[tuple[str, Any], ...]
    replace: bool = False

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        document = handler(schema)
        kept = {name: document[name] for name in ("description", VALIDATIONS) if name in document}
        return {**(kept if self.replace else document), **dict(self.keywords)}


ATOMIC_LIST = SchemaExtra(((LIST_TYPE, "atomic"),))
ATOMIC_OBJECT = SchemaExtra(((MAP_TYPE, "atomic"),))


def free_map(max_properties: int) -> SchemaExtra:
    """An object whose content the schema does not know; the operator checks it and reports by a condition."""
    return SchemaExtra(
        (("type", "object"), (PRESERVE_UNKNOWN, True), ("maxProperties", max_properties)),
        replace=True,
    )


Parsed = TypeVar("Parsed", bound=BaseModel)


def parse(model: type[Parsed], document: Mapping[str, Any]) -> Parsed:
    """Read an object as the API server returns it.

    Raises `InvalidSpec` whose `field` is the path of the first error and whose message lists all of them.
    """
    try:
        return model.model_validate(dict(document))
    except ValidationError as error:
        problems = problems_of(error)
        message = "; ".join(f"{path}: {text}" for path, text in problems)
        raise InvalidSpec(message, field=problems[0][0]) from error


def problems_of(error: ValidationError) -> list[tuple[str, str]]:
    """All problems of a validation error as (path as kubectl writes it, message)."""
    return [(path_of(item["loc"]), _text_of(item["type"], item["msg"])) for item in error.errors(include_url=False)]


def path_of(location: tuple[int | str, ...]) -> str:
    """("spec", "checkpoints", 0, "precision") as spec.checkpoints[0].precision."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".") or "(root)"


def _text_of(kind: str, message: str) -> str:
    match kind:
        case "extra_forbidden":
            return "unknown field; remove it or correct its name"
        case "missing":
            return "required field is missing"
        case _:
            return message


def _refuse_duplicates(keys: list[Any], what: str) -> None:
    seen: list[Any] = []
    for key in keys:
        if key in seen:
            raise PydanticCustomError(
                "forebay_duplicate", "duplicate value: {what}{key} is listed twice", {"what": what, "key": str(key)}
            )
        seen.append(key)
