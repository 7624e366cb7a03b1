"""Draws one token from one row of logits.

Order of filters: temperature, top-k, then top-p on what top-k left, then min-p (relative to the likeliest token). Each
keeps an exact number of tokens in the order logit descending, then lowest id; temperature never changes that order.
The draw is an inverse CDF in id order, which makes the token insensitive to which of two near-equal logits is larger.
Everything is a function of this row alone, in numpy, whose results do not depend on where in a batch a row lies: the
same row, parameters and number give the same token bit for bit.
"""

import numpy as np
import numpy.typing as npt

from forebay.engine.request import SamplingParams
from forebay.engine.sampling.largest import FloatArray, IdArray, first_of, largest

MIN_TEMPERATURE = 1e-5
"""Below it fp32 can no longer tell the distribution from greedy."""
_COARSE_SHARE = 2e-4
_BLOCK = 256

WeightArray = npt.NDArray[np.float64]


def draw(logits: FloatArray, params: SamplingParams, number: float) -> int:
    """The token that `number` in (0, 1) selects from `logits` [vocab], with temperature above 0.

    Entries of minus infinity are never drawn while another exists. Logits that are not numbers give some token id.
    """
    best = float(logits.max())
    if not np.isfinite(best):
        return int(logits.argmax())
    temperature = max(params.temperature, MIN_TEMPERATURE)
    if params.top_k == 0 and params.top_p >= 1.0 and params.min_p <= 0.0:
        return _pick_from_all(_all_weights(logits, best, temperature), number)
    ids = kept_ids(logits, params)
    return int(ids[_pick(_weights(logits[ids], best, temperature), number)])


def kept_ids(logits: FloatArray, params: SamplingParams) -> IdArray:
    """Ids, ascending, that the filters of `params` leave of `logits` [vocab], whose largest is finite."""
    best, temperature = float(logits.max()), max(params.temperature, MIN_TEMPERATURE)
    if params.top_k > 0:
        ids = largest(logits, params.top_k)
        if params.top_p < 1.0:
            mass = params.top_p * float(_weights(logits[ids], best, temperature).sum())
            ids = _nucleus(logits[ids], ids, best, temperature, mass)[0]
    else:
        weights = _all_weights(logits, best, temperature)
        if params.top_p < 1.0:
            ids = _nucleus_of_all(logits, weights, best, temperature, params.top_p)
        else:
            ids = np.flatnonzero(weights >= 0.999 * params.min_p)
    if params.min_p > 0.0:
        ids = ids[_weights(logits[ids], best, temperature) >= params.min_p]
    return ids


def _nucleus_of_all(logits: FloatArray, weights: FloatArray, best: float, temperature: float, top_p: float) -> IdArray:
    """The nucleus of a whole row: looked for among the likely tokens, then among all that can belong to it."""
    total = float(weights.sum())
    # All tokens under a share of (1 - p) / vocab of the mass weigh at most 1 - p together: the nucleus is above.
    certain_share = 0.99 * (1.0 - top_p) / len(weights)
    for share in (_COARSE_SHARE, certain_share):
        ids = np.flatnonzero(weights >= total * share)
        ids, reached = _nucleus(logits[ids], ids, best, temperature, top_p * total)
        if reached:
            break
    return ids


def _nucleus(values: FloatArray, ids: IdArray, best: float, temperature: float, mass: float) -> tuple[IdArray, bool]:
    """The fewest first of `ids` whose weights reach `mass`, and whether they do; all of them when they do not."""
    descending = np.sort(values)[::-1]
    reached = np.searchsorted(_weights(descending, best, temperature).cumsum(), mass)
    return first_of(values, ids, int(reached) + 1), bool(reached < len(ids))


def _weights(values: FloatArray, best: float, temperature: float) -> WeightArray:
    """exp((value - best) / temperature) in fp64: 1 for the likeliest."""
    return np.exp((values.astype(np.float64) - best) / temperature)


def _all_weights(logits: FloatArray, best: float, temperature: float) -> FloatArray:
    """The same for a whole row, in fp32."""
    weights = logits - np.float32(best)
    if temperature != 1.0:
        weights /= np.float32(temperature)
    np.exp(weights, out=weights)
    return weights


def _pick(weights: WeightArray, number: float) -> int:
    """The first index whose cumulative share exceeds `number`; never one of weight 0."""
    return _place(weights.cumsum(), number)


def _pick_from_all(weights: FloatArray, number: float) -> int:
    """The same for a whole row, by blocks: sums of blocks first, then the tokens of one."""
    whole = len(weights) // _BLOCK * _BLOCK
    sums = weights[:whole].reshape(-1, _BLOCK).sum(axis=1).astype(np.float64)
    if whole < len(weights):
        sums = np.append(sums, float(weights[whole:].sum()))
    cumulative = sums.cumsum()
    block = _place(cumulative, number)
    before = cumulative[block - 1] if block else 0.0
    share = (number * cumulative[-1] - before) / sums[block]
    first = block * _BLOCK
    return first + _place(weights[first : first + _BLOCK].astype(np.float64).cumsum(), share)


def _place(cumulative: WeightArray, share: float) -> int:
    """Where `share` of the total falls. Rounding may carry it past the end: the last entry with weight stands there."""
    total = cumulative[-1]
    return int(min(np.searchsorted(cumulative, share * total, side="right"), np.searchsorted(cumulative, total)))
