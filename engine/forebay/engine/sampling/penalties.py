"""Token counts of one sequence and the penalties made from them.

Repetition looks at prompt and output, as transformers defines it: a positive logit is divided by the penalty, another
multiplied. Presence and frequency look at the output only, as OpenAI defines them: they subtract once for a token that
was generated, and once for each time it was. Only tokens that occurred are touched, so the cost does not grow with the
vocabulary. Counts are those of accepted tokens; a token that was only drafted is never counted.
"""

from collections.abc import Sequence

import numpy as np

from forebay.engine.request import SamplingParams
from forebay.engine.sampling.largest import FloatArray

_FIRST_CAPACITY = 256


class TokenCounts:
    """Distinct tokens of a sequence, in order of first occurrence, with how often each was generated."""

    def __init__(self, prompt: Sequence[int], vocab: int) -> None:
        """Prompt tokens outside of the vocabulary have no logit and are left out."""
        known = dict.fromkeys(token for token in prompt if 0 <= token < vocab)
        self._places = {token: place for place, token in enumerate(known)}
        capacity = max(_FIRST_CAPACITY, 2 * len(known))
        self._ids = np.zeros(capacity, dtype=np.int64)
        self._ids[: len(known)] = list(known)
        self._generated = np.zeros(capacity, dtype=np.float32)

    def add(self, token: int) -> None:
        """Count a generated token."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._generated = np.concatenate((self._generated, np.zeros_like(self._generated)))
        self._ids[place] = token
        self._generated[place] += 1.0

    def penalise(self, logits: FloatArray, params: SamplingParams) -> None:
        """Change `logits` [vocab] in place."""
        ids = self._ids[: len(self._places)]
        generated = self._generated[: len(self._places)]
        values = logits[ids]
        if params.repetition_penalty != 1.0:
            penalty = np.float32(params.repetition_penalty)
            values = np.where(values > 0, values / penalty, values * penalty)
        if params.frequency_penalty:
            values -= np.float32(params.frequency_penalty) * generated
        if params.presence_penalty:
            values -= np.float32(params.presence_penalty) * (generated > 0)
        logits[ids] = values


def needs_counts(params: SamplingParams) -> bool:
    """Whether any penalty is on."""
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
