"""The protocol between compiled grammars and the runner, and what happens when a token is wrong.

A matcher follows one sequence. The runner fills a mask before it samples and accepts each token that it keeps; after
a rejected draft it rolls back. A matcher that cannot go on raises `GrammarFault`, which ends its request only.
`sequence.py` is one over the states of `llguidance_matcher.py` and `xgrammar_matcher.py`; `after_reasoning.py` delays
one until reasoning ends.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forebay.contract.errors import ForebayError

MaskWords = NDArray[np.int32]


class GrammarFault(ForebayError):
    """This sequence cannot go on under its grammar; other sequences are not affected."""

    code = "grammar_fault"


class Matcher(Protocol):
    """Where one sequence is in its grammar. Not safe to share between threads."""

    @property
    def complete(self) -> bool:
        """Whether the tokens accepted so far are a whole answer, so that a stop token may come."""

    def fill(self, mask: MaskWords) -> None:
        """Set bit `t % 32` of word `t // 32` for every token t that may come next and clear all others.

        `mask` is one contiguous row of int32 words for the model's vocabulary. Stop tokens are set exactly when the
        grammar is complete. Raises `GrammarFault` when no token may come.
        """

    def accept(self, token: int) -> bool:
        """Take the next token. False, and no change of state, when the grammar does not allow it.

        A stop token is accepted when the grammar is complete; after it only `rollback` may follow.
        """

    def rollback(self, tokens: int) -> None:
        """Forget the last `tokens` accepted tokens."""
