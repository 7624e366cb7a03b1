"""Builders for sampling tests: one sequence's row, and a plain reference of the whole order of sampling.

The reference is written from the definitions, in fp64 and one token at a time, and shares no code with the engine.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from forebay.engine.request import SamplingParams
from forebay.engine.sampling.row import Row
from forebay.engine.structured.matcher import Matcher

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


def make_row(
    params: SamplingParams,
    vocab: int,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    stop_ids: Sequence[int] = (),
    matcher: Matcher | None = None,
) -> Row:
    """A row that has generated `output`."""
    row = Row(params, prompt, frozenset(stop_ids), vocab, matcher)
    for token in output:
        row.accept(token)
    return row


def choose(row: Row, logits: Floats, number: float = 0.5) -> int:
    """The row's next token."""
    return row.choose(logits, number, np.empty_like(logits))[0]


class Reference:
    """Sampling by its definition."""

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], stop_ids: Sequence[int] = ()
    ) -> None:
        self.params = params
        self.prompt = list(prompt)
        self.output = list(output)
        self.stop_ids = list(stop_ids)

    def adjusted(self, logits: Floats) -> Doubles:
        """Logits after penalties, bias and stop tokens that may not come yet."""
        params, changed = self.params, logits.astype(np.float64)
        for token in set(self.prompt) | set(self.output):
            value = changed[token]
            changed[token] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        for token in set(self.output):
            changed[token] -= params.presence_penalty + params.frequency_penalty * self.output.count(token)
        for token, bias in params.logit_bias:
            changed[token] += bias
        if len(self.output) < params.min_tokens:
            changed[self.stop_ids] = -np.inf
        return changed

    def kept(self, adjusted: Doubles) -> list[int]:
        """Ids that the filters leave, best first."""
        params = self.params
        order = sorted(range(len(adjusted)), key=lambda token: (-adjusted[token], token))
        order = [token for token in order if adjusted[token] > -np.inf]
        order = order[: params.top_k or len(order)]
        weights = np.exp((adjusted[order] - adjusted[order[0]]) / params.temperature)
        mass = np.cumsum(weights / weights.sum())
        order = order[: min(len(order), int(np.count_nonzero(mass < params.top_p)) + 1)]
        return [token for token, weight in zip(order, weights, strict=False) if weight >= params.min_p]

    def probabilities(self, logits: Floats) -> Doubles:
        """The distribution of the next token."""
        adjusted = self.adjusted(logits)
        kept = self.kept(adjusted)
        weights = np.exp((adjusted[kept] - adjusted[kept[0]]) / self.params.temperature)
        shares = np.zeros(len(logits))
        shares[kept] = weights / weights.sum()
        return shares
