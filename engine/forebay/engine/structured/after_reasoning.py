"""A matcher that sleeps until the end-of-reasoning tokens have come.

While it sleeps every token may come but stop tokens, so an answer cannot end inside its reasoning. Invariant: a
rollback may cross the end of reasoning in either direction. Made by `store.py`.
"""

from collections.abc import Iterable

from forebay.engine.structured.matcher import MaskWords, Matcher
from forebay.engine.structured.stops import StopBits


class AfterReasoning:
    """A matcher that starts to apply after `end` has come as a run of tokens."""

    def __init__(self, inner: Matcher, end: tuple[int, ...], stop_ids: Iterable[int], vocabulary: int) -> None:
        self._inner = inner
        self._end = end
        self._stops = StopBits(stop_ids, vocabulary)
        self._seen: list[int] = []
        self._applied = 0
        self._awake = False

    @property
    def complete(self) -> bool:
        """See `Matcher.complete`."""
        return self._awake and self._inner.complete

    def fill(self, mask: MaskWords) -> None:
        """See `Matcher.fill`."""
        if self._awake:
            self._inner.fill(mask)
            return
        mask[:] = -1
        self._stops.apply(mask, allowed=False)

    def accept(self, token: int) -> bool:
        """See `Matcher.accept`."""
        if self._awake:
            taken = self._inner.accept(token)
            self._applied += taken
            return taken
        if token in self._stops.ids:
            return False
        self._seen.append(token)
        self._awake = tuple(self._seen[-len(self._end) :]) == self._end
        return True

    def rollback(self, tokens: int) -> None:
        """See `Matcher.rollback`."""
        inner = min(tokens, self._applied)
        if inner:
            self._inner.rollback(inner)
            self._applied -= inner
        outer = tokens - inner
        if outer:
            del self._seen[-outer:]
            self._awake = False
