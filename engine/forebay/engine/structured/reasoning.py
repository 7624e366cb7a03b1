"""Reasoning before a structured answer: the grammar sleeps until the end-of-reasoning tokens have come.

`reasoning_end` decides from the chat template and the rendered prompt whether reasoning is open; `AfterReasoning`
wraps a matcher. While it sleeps every token may come but stop tokens, so an answer cannot end inside its reasoning.
Invariant: a rollback may cross the end of reasoning in either direction.
"""

from collections.abc import Callable, Iterable

from forebay.engine.structured.matcher import MaskWords, Matcher
from forebay.engine.structured.stops import StopBits

_CLOSE = "</think>"


def reasoning_end(template: str, prompt_text: str, encode: Callable[[str], list[int]]) -> tuple[int, ...]:
    """Token ids that end reasoning when the prompt leaves it open, else empty.

    `template` is the chat template's source; `prompt_text` the rendered prompt; `encode` gives the ids of a text.
    A template that knows `</think>` lets the model reason unless its own last words close the block.
    """
    if _CLOSE not in template:
        return ()
    tail = prompt_text[-4 * len(_CLOSE) :].rstrip()
    return () if tail.endswith(_CLOSE) else tuple(encode(_CLOSE))


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
