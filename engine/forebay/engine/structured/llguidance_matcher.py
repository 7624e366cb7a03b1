"""llguidance as a `Matcher`. Its own limits bound the work of every step, so a hostile grammar ends its request only.

A prototype is built once from the grammar's text and copied for each sequence. Built and used by `store.py`.
"""

from collections.abc import Iterable
from typing import Any

from forebay.engine.structured.matcher import GrammarFault, MaskWords
from forebay.engine.structured.sequence import SequenceMatcher
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


class _State:
    """One sequence as llguidance sees it."""

    def __init__(self, prototype: Any) -> None:
        self._matcher = prototype.deep_copy()

    @property
    def complete(self) -> bool:
        """See `GrammarState.complete`."""
        return bool(self._matcher.is_accepting())

    def fill(self, mask: MaskWords) -> None:
        """See `GrammarState.fill`."""
        if self._matcher.is_stopped() and self.complete:
            mask[:] = 0
        else:
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            raise GrammarFault(f"the grammar cannot go on: {self._matcher.get_error()}")

    def take(self, token: int) -> bool:
        """See `GrammarState.take`."""
        return bool(self._matcher.try_consume_tokens([token]) == 1)

    def take_back(self, tokens: int) -> None:
        """See `GrammarState.take_back`."""
        if not self._matcher.rollback(tokens):
            raise GrammarFault(f"the grammar cannot take back {tokens} tokens: {self._matcher.get_error()}")


def open_matcher(prototype: Any, vocabulary: Vocabulary, stop_ids: Iterable[int]) -> SequenceMatcher:
    """A new sequence under a built grammar."""
    return SequenceMatcher(_State(prototype), vocabulary, stop_ids)
