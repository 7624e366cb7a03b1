"""xgrammar as a `Matcher`, over a compiled grammar that came serialized from the compile process.

Built and used by `store.py`, only for grammars that were compiled with this library.
"""

from collections.abc import Iterable
from typing import Any

from forebay.engine.structured.matcher import GrammarFault, MaskWords
from forebay.engine.structured.stops import StopBits
from forebay.engine.structured.vocabulary import Vocabulary


def build(vocabulary: Vocabulary, payload: str) -> Any:
    """The `CompiledGrammar` of a serialized one; raises `GrammarFault` when it cannot be read."""
    import xgrammar  # noqa: PLC0415 - imports torch and transformers, only for its own grammars

    try:
        return xgrammar.CompiledGrammar.deserialize_json(payload, vocabulary.xgrammar)
    except RuntimeError as error:
        raise GrammarFault(f"the compiled grammar cannot be read: {error}") from error


class XgrammarMatcher:
    """One sequence under an xgrammar grammar."""

    def __init__(self, compiled: Any, vocabulary: Vocabulary, stop_ids: Iterable[int]) -> None:
        import xgrammar  # noqa: PLC0415 - loaded already by `build`

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._words = vocabulary.words
        self._stops = StopBits({*stop_ids, *vocabulary.eos_ids}, vocabulary.size)
        self._ended = False

    @property
    def complete(self) -> bool:
        """See `Matcher.complete`."""
        return bool(self._matcher.is_completed())

    def fill(self, mask: MaskWords) -> None:
        """See `Matcher.fill`."""
        if self._ended:
            raise GrammarFault("the answer has ended; no token may follow its stop token")
        if mask.size != self._words or not mask.flags.c_contiguous:
            raise GrammarFault(f"a mask row must be {self._words} words in a row, not {mask.size}")
        try:
            self._matcher.fill_next_token_bitmask(mask.reshape(1, -1), 0)
        except RuntimeError as error:
            raise GrammarFault(f"the grammar cannot go on: {error}") from error
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
        return bool(self._matcher.accept_token(token))

    def rollback(self, tokens: int) -> None:
        """See `Matcher.rollback`."""
        if tokens and self._ended:
            self._ended = False
            tokens -= 1
        if tokens:
            self._matcher.rollback(tokens)
