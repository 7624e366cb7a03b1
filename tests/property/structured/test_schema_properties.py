"""Lowering is exact: numbers, keys and patterns against plain predicates, and random schemas against a validator."""

import functools
import json
import re
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from forebay.contract.errors import InvalidRequest
from forebay.engine.structured.ecma import pattern_term
from forebay.engine.structured.emit_lark import regex
from forebay.engine.structured.json_text import keys_without
from forebay.engine.structured.numbers import Limits, decimals, integers
from forebay.engine.structured.terms import Term
from grammar_walk import Walker, schema_source

LENIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def accepts(term: Term | None) -> re.Pattern[str]:
    """A term as one of Python's patterns."""
    if term is None:
        return re.compile("(?!)")
    return re.compile(re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: f"\\U{int(found[1], 16):08x}", regex(term)))


@given(st.integers(-1200, 1200), st.integers(-1200, 1200), st.booleans(), st.booleans())
@LENIENT
def test_bounded_integers_are_exactly_those_within(low: int, high: int, above: bool, below: bool) -> None:
    limits = Limits(Decimal(low), Decimal(high), above, below)
    pattern = accepts(integers(limits))
    for value in {*range(low - 2, low + 3), *range(high - 2, high + 3), 0, 9, 10, -10, 99, 100, -100, 999, 1000, -1000}:
        is_within = (value > low if above else value >= low) and (value < high if below else value <= high)
        assert bool(pattern.fullmatch(str(value))) == is_within, value
    assert not pattern.fullmatch("007")


PLACES = st.decimals(-50, 50, places=3, allow_nan=False, allow_infinity=False)


@given(PLACES, PLACES, st.lists(PLACES, max_size=20), st.booleans(), st.booleans())
@LENIENT
def test_bounded_decimals_are_exactly_those_within(
    low: Decimal, high: Decimal, values: list[Decimal], above: bool, below: bool
) -> None:
    pattern = accepts(decimals(Limits(low, high, above, below)))
    steps = [Decimal(step) for step in ("-0.001", "0", "0.001", "0.000001", "-0.1")]
    near = [bound + step for bound in (low, high) for step in steps]
    for value in [Decimal(0) if value.is_zero() else value for value in [*values, *near]]:
        is_within = (value > low if above else value >= low) and (value < high if below else value <= high)
        for text in {f"{value:f}", f"{value:.6f}", f"{value.normalize():f}"}:
            assert bool(pattern.fullmatch(text)) == is_within, text


@given(st.lists(st.text('abé"\\', max_size=4), max_size=5), st.text('abcé"\\', max_size=5), st.integers(0, 4))
@LENIENT
def test_other_keys_are_all_but_the_declared(names: list[str], key: str, longest: int) -> None:
    is_other = key not in names and len(key) <= longest
    assert bool(accepts(keys_without(names, longest)).fullmatch(key)) == is_other


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", r"\s", "c", r"\.", "[a-c0-9]"])
QUANTIFIERS = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}?"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@given(
    PATTERNS,
    st.sampled_from(["", "^"]),
    st.sampled_from(["", "$"]),
    st.lists(st.text("abc1 .", max_size=6), max_size=12),
)
@LENIENT
def test_patterns_mean_what_validators_take_them_for(pattern: str, begin: str, end: str, texts: list[str]) -> None:
    whole = f"{begin}{pattern}{end}"
    ours = accepts(pattern_term(whole, 12))
    for text in texts:
        assert bool(ours.fullmatch(text)) == bool(re.search(whole, text)), (whole, text)


NAMES = st.sampled_from(["a", "b", "id", "x_1", 'q"', "é"])
COUNTS = st.integers(0, 3)


@st.composite
def scalars(draw: st.DrawFn) -> dict[str, Any]:
    """A schema of strings, numbers or listed values."""
    kind = draw(st.sampled_from(["string", "integer", "number", "boolean", "null", "enum", "pattern"]))
    low, high = sorted((draw(st.integers(-30, 30)), draw(st.integers(-30, 30))))
    match kind:
        case "string":
            return {"type": "string", "minLength": abs(low) // 10, "maxLength": abs(low) // 10 + draw(COUNTS)}
        case "integer" | "number":
            keys = draw(st.sampled_from([("minimum", "maximum"), ("exclusiveMinimum", "maximum")]))
            return {"type": kind, keys[0]: low, keys[1]: high}
        case "enum":
            return {"enum": draw(st.lists(st.sampled_from([1, 2, "a", "b", None, True, [1], {"a": 1}]), min_size=1))}
        case "pattern":
            return {"type": "string", "pattern": "^" + draw(PATTERNS) + "$", "maxLength": draw(st.integers(1, 9))}
    return {"type": kind}


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas around other schemas."""
    pairs = st.lists(inner, min_size=1, max_size=2)
    arrays = st.fixed_dictionaries(
        {"type": st.just("array"), "minItems": st.integers(0, 2)},
        optional={"items": inner, "prefixItems": pairs, "maxItems": st.integers(1, 3)},
    )
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=4)},
        optional={
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.one_of(st.booleans(), inner),
            "patternProperties": st.dictionaries(st.sampled_from(["^x_", "1$"]), inner, max_size=2),
            "minProperties": st.integers(0, 2),
            "maxProperties": st.integers(1, 4),
        },
    )
    lists = st.lists(inner, min_size=1, max_size=3)
    joined = st.one_of(*(st.fixed_dictionaries({key: lists}) for key in ("anyOf", "oneOf", "allOf")))
    beside = st.tuples(objects, joined).map(lambda pair: {**pair[0], **pair[1]})
    return st.one_of(arrays, objects, joined, beside)


SCHEMAS = st.recursive(st.one_of(scalars(), st.just({"$ref": "#/$defs/node"})), containers, max_leaves=6)


@functools.cache
def walker() -> Walker:
    return Walker.small()


@given(SCHEMAS, SCHEMAS, st.integers(0, 1 << 30))
@settings(LENIENT, max_examples=300)
def test_random_schemas_end_and_validate(schema: dict[str, Any], node: dict[str, Any], seed: int) -> None:
    whole = {**schema, "$defs": {"node": node}}
    try:
        open_matcher = walker().open(schema_source(whole))
    except InvalidRequest as refused:
        assume(condition=False)
        raise AssertionError from refused
    for place, temperature in enumerate((0.0, 1.0, 2.0)):
        value = json.loads(walker().walk(open_matcher(), temperature, seed + place))
        jsonschema.Draft202012Validator(whole).validate(value)


@pytest.mark.parametrize("bound", [0.1 + 0.2, 1e-7, 123456789.123456789, 1e15, 2**53 + 1.0])
def test_doubles_at_a_bound_are_on_the_right_side_of_it(bound: float) -> None:
    for schema in ({"type": "number", "exclusiveMaximum": bound}, {"type": "number", "minimum": bound}):
        try:
            open_matcher = walker().open(schema_source(schema))
        except InvalidRequest:
            continue
        for seed in range(5):
            jsonschema.validate(json.loads(walker().walk(open_matcher(), 2.0, seed)), schema)
