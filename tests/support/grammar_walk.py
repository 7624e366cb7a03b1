"""Walks through grammars without a model: a small vocabulary, and choosers that stand for sampling at a temperature.

Temperature 0 prefers the same tokens at every step, as a model in a loop does; above it tokens are drawn from random
logits, flatter the higher it is. A walk ends when the stop token is chosen; one that does not end is a failure.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from forebay.engine.loader.metadata import TokenizerSource
from forebay.engine.structured import llguidance_matcher
from forebay.engine.structured.bounds import Bounds
from forebay.engine.structured.compile import compile_source
from forebay.engine.structured.matcher import Matcher
from forebay.engine.structured.source import GrammarSource, SourceKind
from forebay.engine.structured.vocabulary import Vocabulary
from forebay.engine.text import TextCodec
from text_build import SPECIAL, byte_level_tokenizer, source

TIGHT = Bounds(string=8, items=3, whitespace=2, key=6, recursion=2, any_depth=1, object_depth=2)
MAX_STEPS = 60_000
_SOLID = r"""
{" ": ", "} "] [] {} }} ]] ], }, [[ [" :[ :{ \" 00 12 123 -1 0. .5 e+ E1 true false null
ab abc name id x_ 20 -0 :0 <tool _call> <tool_call> </tool_call> \\ é 日本
"""
_PIECES = (*_SOLID.split(), '": ', '", "', "\n", "\n\n", "  ", "\n  ", "    ", " {")


def small_tokenizer() -> TokenizerSource:
    """A byte-level tokenizer whose vocabulary also has pieces that span several JSON tokens."""
    document = json.loads(byte_level_tokenizer().to_str())
    vocabulary = document["model"]["vocab"]
    end = next(item for item in document["added_tokens"] if item["content"] == SPECIAL)
    byte_of = {byte: char for char, byte in _byte_chars().items()}
    for piece in _PIECES:
        text = "".join(byte_of[byte] for byte in piece.encode())
        if text not in vocabulary:
            vocabulary[text] = len(vocabulary)
    end["id"] = len(vocabulary)
    return source(Tokenizer.from_str(json.dumps(document)))


def _byte_chars() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


class Walker:
    """Compiles sources for one vocabulary and walks them."""

    def __init__(self, codec: TextCodec, vocabulary: Vocabulary) -> None:
        self.codec = codec
        self.vocabulary = vocabulary
        self.end = vocabulary.eos_ids[0]

    @classmethod
    def small(cls) -> "Walker":
        """A walker over the small vocabulary."""
        tokenizer = small_tokenizer()
        codec = TextCodec(tokenizer)
        return cls(codec, Vocabulary(tokenizer.tokenizer_json, codec.vocabulary_size, tokenizer.eos_ids))

    def open(self, source: GrammarSource) -> Callable[[], Matcher]:
        """Compile a source; each call of the result gives a fresh matcher."""
        compiled = compile_source(source, self.vocabulary)
        prototype = llguidance_matcher.build(self.vocabulary, compiled.payload)
        return lambda: llguidance_matcher.open_matcher(prototype, self.vocabulary, ())

    def walk(self, matcher: Matcher, temperature: float, seed: int) -> str:
        """The text of one walk from a fresh matcher to the stop token."""
        rng = np.random.default_rng(seed)
        mask = np.zeros(self.vocabulary.words, np.int32)
        taste = rng.normal(size=self.vocabulary.size)
        tokens: list[int] = []
        for _ in range(MAX_STEPS):
            matcher.fill(mask)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            token = choose(rng, taste, allowed, temperature)
            assert matcher.accept(token), "the mask allowed a token that the matcher refuses"
            if token == self.end:
                return self.codec.decode(tokens)
            tokens.append(token)
        raise AssertionError(f"no end after {MAX_STEPS} tokens")


def choose(rng: np.random.Generator, taste: Any, allowed: Any, temperature: float) -> int:
    """One of the allowed tokens."""
    if temperature == 0:
        return int(allowed[np.argmax(taste[allowed])])
    logits = (taste[allowed] + 3 * rng.normal(size=allowed.size)) / temperature
    weights = np.exp(logits - logits.max())
    return int(rng.choice(allowed, p=weights / weights.sum()))


def schema_source(schema: Any, bounds: Bounds = TIGHT, backend: str = "auto") -> GrammarSource:
    """A source for a JSON schema."""
    return GrammarSource(SourceKind.JSON_SCHEMA, json.dumps(schema), "schema", backend, bounds)
