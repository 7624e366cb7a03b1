"""xgrammar as a `Matcher`, over a compiled grammar that came serialized from the compile process.

Built and used by `store.py`, only for grammars that were compiled with this library.
"""

from collections.abc import Iterable
from typing import Any

from forebay.engine.structured.matcher import GrammarFault, MaskWords
from forebay.engine.structured.sequence import SequenceMatcher
from forebay.engine.structured.vocabulary import Vocabulary


def build(vocabulary: Vocabulary, payload: str) -> Any:
    """The `CompiledGrammar` of a serialized one; raises `GrammarFault` when it cannot be read."""
    import xgrammar  # noqa: PLC0415 - imports torch and transformers, only for its own grammars

    try:
        return xgrammar.CompiledGrammar.deserialize_json(payload, vocabulary.xgrammar)
    except RuntimeError as error:
        raise GrammarFault(f"the compiled grammar cannot be read: {error}") from error


class _State:
    """One sequence as xgrammar sees it."""

    def __init__(self, compiled: Any) -> None:
        import xgrammar  # noqa: PLC0415 - loaded already by `build`

        self._matcher = xgrammar.GrammarMatcher(compiled)

    @property
    def complete(self) -> bool:
        """See `GrammarState.complete`."""
        return bool(self._matcher.is_completed())

    def fill(self, mask: MaskWords) -> None:
        """See `GrammarState.fill`."""
        try:
            self._matcher.fill_next_token_bitmask(mask.reshape(1, -1), 0)
        except RuntimeError as error:
            raise GrammarFault(f"the grammar cannot go on: {error}") from error

    def take(self, token: int) -> bool:
        """See `GrammarState.take`."""
        return bool(self._matcher.accept_token(token))

    def take_back(self, tokens: int) -> None:
        """See `GrammarState.take_back`."""
        self._matcher.rollback(tokens)


def open_matcher(compiled: Any, vocabulary: Vocabulary, stop_ids: Iterable[int]) -> SequenceMatcher:
    """A new sequence under a built grammar."""
    return SequenceMatcher(_State(compiled), vocabulary, stop_ids)
