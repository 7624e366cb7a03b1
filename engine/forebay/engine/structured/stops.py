"""Stop tokens of one sequence under a grammar: legal exactly when the grammar is complete."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from forebay.engine.structured.matcher import MaskWords


class StopBits:
    """The stop tokens as mask bits. Ids outside the vocabulary are left out."""

    def __init__(self, stop_ids: Iterable[int], vocabulary: int) -> None:
        self.ids = frozenset(stop_ids)
        bits = np.zeros((vocabulary + 31) // 32, np.uint32)
        for token in self.ids:
            if 0 <= token < vocabulary:
                bits[token // 32] |= np.uint32(1 << (token % 32))
        self._words: NDArray[np.intp] = np.flatnonzero(bits)
        self._bits: NDArray[np.int32] = bits[self._words].view(np.int32)

    def apply(self, mask: MaskWords, *, allowed: bool) -> None:
        """Set or clear the stop tokens in a mask."""
        if allowed:
            mask[self._words] |= self._bits
        else:
            mask[self._words] &= ~self._bits
