"""xgrammar takes the same terms: what it compiles it enforces alike, and what it cannot it refuses by name."""

import json
from typing import Any

import jsonschema
import pytest

from forebay.contract.errors import InvalidRequest
from forebay.engine.structured import xgrammar_matcher
from forebay.engine.structured.compile import compile_source
from forebay.engine.structured.matcher import Matcher
from forebay.engine.structured.source import GrammarSource, SourceKind
from grammar_walk import TIGHT, Walker, schema_source
from schema_corpus import CORPUS

NAMES = ["strings-4", "numbers-3", "values-13", "arrays-8", "objects-2", "joined-6", "references-0", "requests-1"]


@pytest.fixture(scope="module")
def walker() -> Walker:
    return Walker.small()


def matcher(walker: Walker, source: GrammarSource) -> Matcher:
    compiled = compile_source(source, walker.vocabulary)
    assert compiled.backend == "xgrammar"
    built = xgrammar_matcher.build(walker.vocabulary, compiled.payload)
    return xgrammar_matcher.open_matcher(built, walker.vocabulary, ())


@pytest.mark.parametrize("name", NAMES)
def test_its_walks_end_and_validate(walker: Walker, name: str) -> None:
    schema: Any = CORPUS[name]
    source = schema_source(schema, backend="xgrammar")
    for seed, temperature in enumerate((0.0, 1.0, 2.0)):
        value = json.loads(walker.walk(matcher(walker, source), temperature, seed))
        jsonschema.Draft202012Validator(schema).validate(value)


def test_auto_gives_it_its_own_language(walker: Walker) -> None:
    source = GrammarSource(SourceKind.GRAMMAR, 'root ::= "a" root | "b"', "grammar", "auto", TIGHT)
    assert set(walker.walk(matcher(walker, source), 1.0, 1)) <= {"a", "b"}
    broken = GrammarSource(SourceKind.GRAMMAR, "root ::= (", "grammar", "auto", TIGHT)
    with pytest.raises(InvalidRequest, match="grammar: does not compile"):
        compile_source(broken, walker.vocabulary)


def test_what_needs_an_intersection_and_a_foreign_language_are_refused(walker: Walker) -> None:
    schema = {"type": "string", "pattern": "a", "maxLength": 3}
    with pytest.raises(InvalidRequest, match="only llguidance enforces"):
        compile_source(schema_source(schema, backend="xgrammar"), walker.vocabulary)
    lark = GrammarSource(SourceKind.LARK, 'start: "a"', "lark", "xgrammar", TIGHT)
    with pytest.raises(InvalidRequest, match="lark: needs llguidance"):
        compile_source(lark, walker.vocabulary)


def test_a_rollback_restores_its_masks(walker: Walker) -> None:
    held = matcher(walker, schema_source({"const": [1, 2]}, backend="xgrammar"))
    tokens = walker.codec.encode_text("[1,2]")
    assert all(held.accept(token) for token in [*tokens, walker.end])
    held.rollback(3)
    assert not held.complete
    assert not held.accept(walker.end)
    assert all(held.accept(token) for token in [*tokens[-2:], walker.end])
