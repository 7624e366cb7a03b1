"""One sequence under a grammar of either library: mask rows are checked, and stop tokens are legal at its end only.

What the libraries do differently is a `GrammarState`; all that the `Matcher` protocol promises beside it is here.
"""

from collections.abc import Iterable
from typing import Protocol

from forebay.engine.structured.matcher import GrammarFault, MaskWords
from forebay.engine.structured.stops import StopBits
from forebay.engine.structured.vocabulary import Vocabulary


class GrammarState(Protocol):
    """A library's own state of one sequence; it knows no stop tokens. Raises `GrammarFault` when it cannot go on."""

    @property
    def complete(self) -> bool:
        """Whether the tokens taken so far are a whole answer."""

    def fill(self, mask: MaskWords) -> None:
        """Write the tokens that may come next; bits of stop tokens are overwritten afterwards."""

    def take(self, token: int) -> bool:
        """Take the next token. False, and no change, when it is not allowed."""

    def take_back(self, tokens: int) -> None:
        """Forget the last `tokens` taken tokens, at least one."""


class SequenceMatcher:
    """A `Matcher` over a library's state."""

    def __init__(self, state: GrammarState, vocabulary: Vocabulary, stop_ids: Iterable[int]) -> None:
        self._state = state
        self._words = vocabulary.words
        self._stops = StopBits({*stop_ids, *vocabulary.eos_ids}, vocabulary.size)
        self._ended = False

    @property
    def complete(self) -> bool:
        """See `Matcher.complete`."""
        return self._state.complete

    def fill(self, mask: MaskWords) -> None:
        """See `Matcher.fill`."""
        if self._ended:
            raise GrammarFault("the answer has ended; no token may follow its stop token")
        if mask.size != self._words or not mask.flags.c_contiguous:
            raise GrammarFault(f"a mask row must be {self._words} words in a row, not {mask.size}")
        self._state.fill(mask)
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
        return self._state.take(token)

    def rollback(self, tokens: int) -> None:
        """See `Matcher.rollback`."""
        if tokens and self._ended:
            self._ended = False
            tokens -= 1
        if tokens:
            self._state.take_back(tokens)
