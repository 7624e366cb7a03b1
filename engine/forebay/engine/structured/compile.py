"""Compiles a grammar source: the text or artifact that the core's matchers are built from. Runs in the compile process.

JSON schemas are lowered by us, so both libraries enforce the same thing; `auto` takes llguidance, which can do all that
the lowering needs, and xgrammar for its own EBNF. A grammar is tried on its first token before it is given out.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from forebay.contract.errors import InvalidRequest
from forebay.engine.structured import llguidance_matcher, xgrammar_matcher
from forebay.engine.structured.ecma import BadPattern, pattern_term
from forebay.engine.structured.emit_ebnf import NeedsIntersection, ebnf_grammar
from forebay.engine.structured.emit_lark import lark_grammar
from forebay.engine.structured.frames import Compiled
from forebay.engine.structured.lower import Lowering
from forebay.engine.structured.lower_tools import tags_term, tools_term
from forebay.engine.structured.matcher import GrammarFault
from forebay.engine.structured.source import GrammarSource, SourceKind
from forebay.engine.structured.terms import Lexeme, Term
from forebay.engine.structured.vocabulary import Vocabulary


def grammar_terms(source: GrammarSource, vocabulary: Vocabulary) -> tuple[dict[str, Term], Term]:
    """Rules and start of a source that is lowered by us; `InvalidRequest` names what is not supported."""
    lowering = Lowering(source.bounds, lambda term: llguidance_matcher.is_empty(vocabulary, lark_grammar({}, term)))
    try:
        start = _START[source.kind](lowering, source)
    except RecursionError:
        raise InvalidRequest(f"{source.param}: is nested too deeply", param=source.param) from None
    except InvalidRequest as error:
        if error.param is None:
            raise InvalidRequest(f"{source.param}: {error.message}", param=source.param) from error
        raise
    return lowering.rules, start


def _json_object(lowering: Lowering, source: GrammarSource) -> Term:
    term = lowering.any_object(source.bounds.object_depth)
    if term is None:
        raise InvalidRequest("no object fits the bounds", param=source.param)
    return term


def _json_schema(lowering: Lowering, source: GrammarSource) -> Term:
    return lowering.schema(json.loads(source.text), source.param)


def _regex(lowering: Lowering, source: GrammarSource) -> Term:
    try:
        term = pattern_term(f"^(?:{source.text})$", lowering.bounds.string)
    except BadPattern as error:
        raise InvalidRequest(f"{source.param}: this pattern is not supported: {error}", param=source.param) from error
    if term is None:
        raise InvalidRequest(f"{source.param}: no text matches this pattern", param=source.param)
    return Lexeme(term)


def _tools(lowering: Lowering, source: GrammarSource) -> Term:
    document = json.loads(source.text)
    answer = document["answer"]
    if answer is None:
        return tools_term(lowering, document, None)
    inner = replace(source, kind=SourceKind(answer["kind"]), text=answer["text"], param=answer["param"])
    if inner.kind not in _START:
        text = f"{inner.param}: {inner.kind.value} cannot be combined with tools; use a JSON schema or a pattern"
        raise InvalidRequest(text, param=inner.param)
    return tools_term(lowering, document, _START[inner.kind](lowering, inner))


def _tags(lowering: Lowering, source: GrammarSource) -> Term:
    return tags_term(lowering, json.loads(source.text), source.param)


_START: Final[dict[SourceKind, Callable[[Lowering, GrammarSource], Term]]] = {
    SourceKind.JSON_OBJECT: _json_object,
    SourceKind.JSON_SCHEMA: _json_schema,
    SourceKind.REGEX: _regex,
    SourceKind.TOOLS: _tools,
    SourceKind.STRUCTURAL_TAG: _tags,
}


def backend_of(source: GrammarSource) -> str:
    """The library that a source is for: the configured one, or the one that enforces its language exactly."""
    if source.backend != "auto":
        return source.backend
    return "xgrammar" if source.kind is SourceKind.GRAMMAR else "llguidance"


def prepare(source: GrammarSource, vocabulary: Vocabulary) -> None:
    """Load the library and its vocabulary: once, and not part of any compilation's time."""
    _ = vocabulary.xgrammar if backend_of(source) == "xgrammar" else vocabulary.llguidance


def compile_source(source: GrammarSource, vocabulary: Vocabulary) -> Compiled:
    """The compiled grammar of a source; `InvalidRequest` naming the field when it does not compile."""
    backend = backend_of(source)
    if (backend, source.kind) in _FOREIGN:
        other = "xgrammar" if backend == "llguidance" else "llguidance"
        text = f"{source.param}: needs {other}, and this engine is configured with structured_backend {backend}"
        raise InvalidRequest(text, param=source.param)
    try:
        return _COMPILE[backend](source, vocabulary)
    except (GrammarFault, NeedsIntersection) as error:
        raise InvalidRequest(f"{source.param}: does not compile: {error}", param=source.param) from error


def _llguidance(source: GrammarSource, vocabulary: Vocabulary) -> Compiled:
    grammar = source.text if source.kind not in _START else lark_grammar(*grammar_terms(source, vocabulary))
    prototype = llguidance_matcher.build(vocabulary, grammar)
    llguidance_matcher.open_matcher(prototype, vocabulary, ()).fill(np.zeros(vocabulary.words, np.int32))
    return Compiled("llguidance", grammar)


def _xgrammar(source: GrammarSource, vocabulary: Vocabulary) -> Compiled:
    import xgrammar  # noqa: PLC0415 - imports torch and transformers, only for its own grammars

    narrow = replace(source, bounds=replace(source.bounds, whitespace=min(source.bounds.whitespace, 1)))
    grammar = source.text if source.kind not in _START else ebnf_grammar(*grammar_terms(narrow, vocabulary))
    compiler = xgrammar.GrammarCompiler(vocabulary.xgrammar, max_threads=1, cache_enabled=False)
    try:
        compiled = compiler.compile_grammar(grammar)
    except RuntimeError as error:
        raise GrammarFault(str(error)) from error
    matcher = xgrammar_matcher.open_matcher(compiled, vocabulary, ())
    matcher.fill(np.zeros(vocabulary.words, np.int32))
    return Compiled("xgrammar", compiled.serialize_json())


_COMPILE: Final[dict[str, Callable[[GrammarSource, Vocabulary], Compiled]]] = {
    "llguidance": _llguidance,
    "xgrammar": _xgrammar,
}
_FOREIGN: Final = frozenset({("llguidance", SourceKind.GRAMMAR), ("xgrammar", SourceKind.LARK)})
"""Languages that a library cannot read."""
