"""llguidance as a `Matcher`. Its own limits bound the work of every step, so a hostile grammar ends its request only.

A prototype is built once from the grammar's text and copied for each sequence. Built and used by `store.py`.
"""

from collections.abc import Iterable
from typing import Any

from forebay.engine.structured.matcher import GrammarFault, MaskWords
from forebay.engine.structured.stops import StopBits
from forebay.engine.structured.vocabulary import Vocabulary

_STEP_LEXER_FUEL = 400_000
_STEP_ITEMS = 60_000
_GRAMMAR_SYMBOLS = 400_000
_LEXER_STATES = 60_000
_INITIAL_FUEL = 4_000_000


def is_empty(vocabulary: Vocabulary, grammar: str) -> bool:
    """Whether a grammar of one lexeme has no text; raises `GrammarFault` when it is too complex to tell."""
    matcher = _prototype(vocabulary, grammar)
    matcher.compute_bitmask()
    if matcher.is_error() and not matcher.get_error().startswith("NoExtension"):
        raise GrammarFault(f"the grammar does not compile: {matcher.get_error()}")
    return bool(matcher.is_error())


def build(vocabulary: Vocabulary, grammar: str) -> Any:
    """The prototype `LLMatcher` of a grammar's text; raises `GrammarFault` when it does not compile."""
    matcher = _prototype(vocabulary, grammar)
    if not matcher.is_error():
        # What the first mask finds out about the grammar is shared by all copies.
        matcher.compute_bitmask()
    if matcher.is_error():
        raise GrammarFault(f"the grammar does not compile: {matcher.get_error()}")
    return matcher


def _prototype(vocabulary: Vocabulary, grammar: str) -> Any:
    import llguidance  # noqa: PLC0415 - only for structured output

    limits = llguidance.LLParserLimits(
        step_lexer_fuel=_STEP_LEXER_FUEL,
        step_max_items=_STEP_ITEMS,
        max_grammar_size=_GRAMMAR_SYMBOLS,
        max_lexer_states=_LEXER_STATES,
        initial_lexer_fuel=_INITIAL_FUEL,
        verbose_errors=False,
    )
    return llguidance.LLMatcher(vocabulary.llguidance, grammar, log_level=0, limits=limits)


class LlguidanceMatcher:
    """One sequence under an llguidance grammar."""

    def __init__(self, prototype: Any, vocabulary: Vocabulary, stop_ids: Iterable[int]) -> None:
        self._matcher = prototype.deep_copy()
        self._words = vocabulary.words
        self._stops = StopBits({*stop_ids, *vocabulary.eos_ids}, vocabulary.size)
        self._ended = False

    @property
    def complete(self) -> bool:
        """See `Matcher.complete`."""
        return bool(self._matcher.is_accepting())

    def fill(self, mask: MaskWords) -> None:
        """See `Matcher.fill`."""
        if self._ended:
            raise GrammarFault("the answer has ended; no token may follow its stop token")
        if mask.size != self._words or not mask.flags.c_contiguous:
            raise GrammarFault(f"a mask row must be {self._words} words in a row, not {mask.size}")
        if self._matcher.is_stopped() and self.complete:
            mask[:] = 0
        else:
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            raise GrammarFault(f"the grammar cannot go on: {self._matcher.get_error()}")
        self._stops.apply(mask, allowed=self.complete)
        if not mask.any():
            raise GrammarFault("no token of this model's vocabulary can follow under this grammar")

    def accept(self, token: int) -> bool:
        """See `Matcher.accept`."""
        if self._ended:
            return False
        if token in self._stops.ids:
            self._ended = self.complete
            return self._ended
        return bool(self._matcher.try_consume_tokens([token]) == 1)

    def rollback(self, tokens: int) -> None:
        """See `Matcher.rollback`."""
        if tokens and self._ended:
            self._ended = False
            tokens -= 1
        if tokens and not self._matcher.rollback(tokens):
            raise GrammarFault(f"the grammar cannot take back {tokens} tokens: {self._matcher.get_error()}")
