"""What a schema may say: everything else is a refusal that names the keyword and its place."""

import functools
import json
import re
from typing import Any

import pytest

from forebay.contract.errors import InvalidRequest
from forebay.engine.structured.compile import grammar_terms
from forebay.engine.structured.ecma import BadPattern, pattern_term
from forebay.engine.structured.schema_check import SUPPORTED
from forebay.engine.structured.vocabulary import Vocabulary
from grammar_walk import Walker, schema_source


@functools.cache
def vocabulary() -> Vocabulary:
    return Walker.small().vocabulary


def refusal(schema: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        grammar_terms(schema_source(schema), vocabulary())
    assert caught.value.param == "schema"
    return caught.value.message


@pytest.mark.parametrize(
    "keyword",
    [
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "maxContains",
        "multipleOf",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedProperties",
        "unevaluatedItems",
        "additionalItems",
        "$dynamicRef",
        "$anchor",
        "contentEncoding",
        "contentMediaType",
        "maxlength",
        "nullable",
    ],
)
def test_an_unsupported_keyword_is_named_with_its_pointer_wherever_it_stands(keyword: str) -> None:
    for schema, pointer in (
        ({keyword: {}}, f"#/{keyword}"),
        ({"properties": {"a/b": {"items": {keyword: 1}}}}, f"#/properties/a~1b/items/{keyword}"),
        ({"$defs": {"unused": {keyword: []}}, "type": "null"}, f"#/$defs/unused/{keyword}"),
        ({"anyOf": [{"type": "null"}, {"allOf": [{keyword: None}]}]}, f"#/anyOf/1/allOf/0/{keyword}"),
    ):
        message = refusal(schema)
        assert repr(keyword) in message
        assert f"at {pointer}:" in message
    assert keyword not in SUPPORTED


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"uniqueItems": True}, "uniqueItems"),
        ({"type": "text"}, "type must be"),
        ({"minLength": -1}, "minLength"),
        ({"minItems": 10**9}, "minItems"),
        ({"required": "a"}, "required"),
        ({"enum": []}, "enum"),
        ({"format": "iri"}, "format"),
        ({"items": [{}]}, "#/items"),
        ({"properties": {"a": 1}}, "#/properties/a"),
        ({"$schema": "https://json-schema.org/draft-04/schema"}, "dialect"),
        ({"$ref": "https://example.org/x"}, "local"),
        ({"$ref": "#/$defs/none"}, "points at nothing"),
        ({"properties": {"a": {"$id": "b"}}}, "$id"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf branches 0 and 1"),
        ({"oneOf": [{"type": "null"}, {"enum": [None]}]}, "oneOf branches 0 and 1"),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "additionalProperties": True}, "oneOf"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no value"),
        ({"type": "object", "required": ["a"], "properties": {"a": False}}, "no value"),
        (
            {"$defs": {"a": {"properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}}, "$ref": "#/$defs/a"},
            "no value",
        ),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "back to itself"),
        ({"type": "object", "minProperties": 3}, "minProperties"),
        ({"type": "string", "pattern": "^aa$", "maxLength": 1}, "no value"),
        ({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, "no value"),
        ({"propertyNames": {"anyOf": [{"maxLength": 1}]}}, "propertyNames"),
        (False, "no value"),
    ],
)
def test_what_cannot_be_enforced_or_satisfied_is_refused(schema: Any, said: str) -> None:
    assert said in refusal(schema)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(?=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "back references"),
        (r"\bword", "word boundaries"),
        (r"\p{L}", "property classes"),
        ("a^b", "ends of the pattern"),
        ("a{2,1}", "maximum"),
        ("a{99999}", "4096"),
        ("(a", "unmatched ("),
        ("a)", "unmatched )"),
        ("[z-a]", "out of order"),
        ("*a", "nothing to repeat"),
        ("a**", "repeated repetition"),
        ("\\", "ends too early"),
        ("(" * 50 + ")" * 50, "deeper"),
    ],
)
def test_a_pattern_outside_of_regular_sets_is_refused_by_name(pattern: str, said: str) -> None:
    with pytest.raises(BadPattern, match=re.escape(said)):
        pattern_term(pattern, 10)
    assert "#/pattern:" in refusal({"type": "string", "pattern": pattern})


def test_schemas_that_are_too_large_or_too_deep_are_refused() -> None:
    assert "subschemas" in refusal({"anyOf": [{"const": place} for place in range(6000)]})
    deep: Any = {"type": "null"}
    for _ in range(100):
        deep = {"items": deep}
    assert "deeper" in refusal(deep)
    factors = [{"anyOf": [{"minLength": place}, {"maxLength": 99 - place}]} for place in range(20)]
    assert "expanded" in refusal({"type": "string", "allOf": factors})


def test_unbounded_parts_get_the_stated_bounds() -> None:
    walker = Walker.small()
    open_text = walker.open(schema_source({"type": "string"}))
    open_list = walker.open(schema_source({"type": "array", "items": {"type": "null"}}))
    open_map = walker.open(schema_source({"type": "object", "additionalProperties": {"type": "null"}}))
    open_number = walker.open(schema_source({"type": "integer"}))
    for seed in range(10):
        assert len(json.loads(walker.walk(open_text(), 2.0, seed))) <= 8
        assert len(json.loads(walker.walk(open_list(), 2.0, seed))) <= 3
        assert len(json.loads(walker.walk(open_map(), 2.0, seed))) <= 3
        assert len(walker.walk(open_number(), 0.0, seed).lstrip("-")) <= 15


def test_blanks_never_run_longer_than_the_bound() -> None:
    walker = Walker.small()
    member = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    open_matcher = walker.open(schema_source({"type": "array", "items": member}))
    for seed in range(20):
        run = longest = 0
        for char in walker.walk(open_matcher(), 2.0, seed):
            run = run + 1 if char in " \t\n\r" else 0
            longest = max(longest, run)
        assert longest <= 2
