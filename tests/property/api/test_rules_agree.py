"""The two readings of the API, CRD schema with CEL and pydantic models, give the same verdict on any object."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from api_objects import mutated, objects, pattern_of
from forebay.api.crd import root_schema
from forebay.api.kinds import KINDS, Kind
from forebay.api.rules import Rule
from forebay.api.schema import structural
from forebay.api.shape import Shape, StatusShape
from structural import evaluate_cel, problems

RELAXED = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
NAMES = st.one_of(
    st.from_regex("[a-z]([-a-z0-9]{0,30}[a-z0-9])?", fullmatch=True),
    st.sampled_from(["a" * 40, "a" * 41, "1abc", "a.b", "abc-", "Abc"]),
)


def spec_shapes() -> list[type[Shape]]:
    """Every model that a user's document can contain, once, in a stable order."""
    found: dict[str, type[Shape]] = {}

    def visit(model: type[BaseModel]) -> None:
        for field in model.model_fields.values():
            for inner in _models_in(field.annotation):
                if issubclass(inner, Shape) and not issubclass(inner, StatusShape) and inner.__name__ not in found:
                    found[inner.__name__] = inner
                    visit(inner)

    for kind in KINDS:
        visit(kind.model)
    return [found[name] for name in sorted(found)]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)


def patterned_fields() -> list[tuple[str, dict[str, Any], FieldInfo]]:
    """One field of a spec for each different pattern: (pattern, schema of the field, field)."""
    found: dict[str, tuple[str, dict[str, Any], FieldInfo]] = {}
    for shape in spec_shapes():
        schemas = structural(shape)["properties"]
        for field in shape.model_fields.values():
            schema = schemas[field.alias]
            pattern = pattern_of(schema)
            if pattern is not None:
                found.setdefault(pattern, (pattern, schema, field))
    return list(found.values())


def accepted(adapter: TypeAdapter[Any], document: Any) -> bool:
    try:
        adapter.validate_python(document)
    except ValidationError:
        return False
    return True


SHAPES = spec_shapes()
RULED = [(shape, rule) for shape in SHAPES for rule in shape.rules]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_schema_with_cel_and_pydantic_give_the_same_verdict(shape: type[Shape]) -> None:
    schema = structural(shape)
    adapter: TypeAdapter[Any] = TypeAdapter(shape)

    @RELAXED
    @given(st.one_of(objects(schema), mutated(schema)))
    def agree(document: Any) -> None:
        found = problems(schema, document)
        assert accepted(adapter, document) == (not found), found

    agree()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_whole_objects_get_the_same_verdict(kind: Kind) -> None:
    schema = root_schema(kind)
    adapter: TypeAdapter[Any] = TypeAdapter(kind.model)
    identity = {"apiVersion": "forebay.dev/v1alpha1", "kind": kind.name}

    @RELAXED
    @given(NAMES, objects(schema["properties"]["spec"]))
    def agree(name: str, spec: Any) -> None:
        document = {**identity, "metadata": {"name": name}, "spec": spec}
        found = problems(schema, document)
        assert accepted(adapter, document) == (not found), found

    agree()


@pytest.mark.parametrize(
    ("pattern", "schema", "field"), patterned_fields(), ids=lambda item: item if isinstance(item, str) else ""
)
def test_patterns_mean_the_same_in_cel_and_python(pattern: str, schema: dict[str, Any], field: FieldInfo) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation())

    @RELAXED
    @given(st.one_of(st.from_regex(pattern), st.from_regex(f"(?:{pattern})", fullmatch=True), st.text(max_size=20)))
    def agree(text: str) -> None:
        found = problems(schema, text)
        assert accepted(adapter, text) == (not found), found

    agree()


@pytest.mark.parametrize(("shape", "rule"), RULED, ids=lambda item: getattr(item, "message", None))
def test_each_rule_can_hold_and_can_fail(shape: type[Shape], rule: Rule) -> None:
    schema = structural(shape)
    verdicts: set[bool] = set()

    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(objects(schema))
    def collect(value: Any) -> None:
        verdicts.add(evaluate_cel(rule.expr, value))

    collect()
    assert verdicts == {True, False}, f"the rule always says {verdicts}: {rule.expr}"
