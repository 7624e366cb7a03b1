"""A small matcher: runs of one letter class after another, each token id's class being its remainder.

A text is `length` tokens; token i must have remainder i % `classes` and may be any of those. It is complete after
`length` tokens. It checks its caller: what it did not allow must not be accepted, and no more rolled back than came.
"""

import numpy as np

from forebay.engine.structured.matcher import GrammarFault, MaskWords


class ToyMatcher:
    """Follows one sequence over `vocab` tokens."""

    def __init__(self, vocab: int, classes: int, length: int) -> None:
        self._vocab = vocab
        self._classes = classes
        self._length = length
        self.accepted: list[int] = []

    @property
    def complete(self) -> bool:
        """Whether all tokens have come."""
        return len(self.accepted) == self._length

    def allows(self, token: int) -> bool:
        """Whether `token` may come now."""
        return not self.complete and token % self._classes == len(self.accepted) % self._classes

    def fill(self, mask: MaskWords) -> None:
        """Set the bits of the class that is due."""
        bits = np.zeros(32 * len(mask), dtype=np.uint8)
        bits[: self._vocab] = [self.allows(token) for token in range(self._vocab)]
        mask[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def accept(self, token: int) -> bool:
        """Take a token of the class that is due."""
        if not self.allows(token):
            return False
        self.accepted.append(token)
        return True

    def rollback(self, tokens: int) -> None:
        """Forget the last tokens."""
        assert 0 < tokens <= len(self.accepted)
        del self.accepted[-tokens:]


class BrokenMatcher(ToyMatcher):
    """Breaks down when it has taken `good` tokens."""

    def __init__(self, vocab: int, good: int) -> None:
        super().__init__(vocab, 1, 1000)
        self._good = good

    def fill(self, mask: MaskWords) -> None:
        """Fail after the good tokens."""
        if len(self.accepted) == self._good:
            raise GrammarFault("the matcher broke down")
        super().fill(mask)
