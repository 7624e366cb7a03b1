"""Token choice for a batch of rows with different parameters.

Order of filters: temperature, then top-k, then top-p on what top-k left. A filter keeps an exact number of tokens, in
the order value descending, then lowest id. The draw is an inverse CDF in id order with one Philox number for each
(seed, absolute position): id order makes the result insensitive to which of two near-equal logits is larger. Greedy
rows take the lowest id of the largest logit and use no noise.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from forebay.engine.sampling.philox import UintArray, uniform

_FIRST_CANDIDATES = 512
_MIN_TEMPERATURE = 1e-5
"""A smaller one would make fp32 logits infinite, and their distribution undefined; this one is as good as greedy."""


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Parameters of n rows as parallel arrays.

    `temperatures` 0 means greedy, `top_k` 0 and `top_p` 1 mean off; `positions` are those of the tokens to be drawn.
    """

    temperatures: npt.NDArray[np.float64]
    top_k: npt.NDArray[np.int64]
    top_p: npt.NDArray[np.float64]
    seeds: UintArray
    positions: UintArray


def sample(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Token ids int64 [n] for `logits` [n, vocab] of any float type."""
    # numpy's argmax is an order of magnitude faster than torch's, and specified to return the first of equals.
    greedy = torch.from_numpy(logits.float().numpy().argmax(axis=-1))
    drawn = np.flatnonzero(rows.temperatures > 0)
    if len(drawn) == 0:
        return greedy
    index = torch.from_numpy(drawn)
    temperatures = torch.from_numpy(np.maximum(rows.temperatures[drawn], _MIN_TEMPERATURE)).float()
    scaled = logits[index].float().div_(temperatures[:, None])
    keep = kept_counts(scaled, rows.top_k[drawn], rows.top_p[drawn])
    filtered = keep_largest(scaled, keep)
    greedy[index] = _inverse_cdf(filtered, torch.from_numpy(uniform(rows.seeds[drawn], rows.positions[drawn])))
    return greedy


def kept_counts(
    logits: torch.Tensor, top_k: npt.NDArray[np.int64], top_p: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    """How many of its largest logits each row keeps: top-k, then the least number whose probability reaches top-p."""
    vocab = logits.shape[1]
    counts = np.where((top_k > 0) & (top_k < vocab), top_k, vocab)
    rows = np.flatnonzero(top_p < 1.0)
    # A row's top-k set must lie within the candidates, or its total mass would be unknown.
    candidates = min(vocab, max(_FIRST_CANDIDATES, int(np.where(counts < vocab, counts, 0).max(initial=0))))
    while len(rows):
        reached, mass_counts = _mass_counts(logits[torch.from_numpy(rows)], counts[rows], top_p[rows], candidates)
        done = reached | (counts[rows] <= candidates) | (candidates == vocab)
        counts[rows[done]] = np.minimum(counts[rows], mass_counts)[done]
        rows, candidates = rows[~done], min(vocab, 8 * candidates)
    return counts


def _mass_counts(
    logits: torch.Tensor, counts: npt.NDArray[np.int64], top_p: npt.NDArray[np.float64], candidates: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Among the `candidates` largest logits: whether the mass top_p is reached, and by how many tokens."""
    largest = logits.topk(candidates, dim=-1).values.double()
    limits = torch.from_numpy(counts)
    unlimited = torch.logsumexp(logits.double(), dim=-1)
    limited = torch.logsumexp(largest.masked_fill(torch.arange(candidates) >= limits[:, None], float("-inf")), dim=-1)
    total = torch.where(limits <= candidates, limited, unlimited)
    mass = torch.exp(largest - total[:, None]).cumsum(dim=-1)
    short = (mass < torch.from_numpy(top_p)[:, None]).sum(dim=-1)
    return (short < candidates).numpy(), (short + 1).numpy()


def keep_largest(logits: torch.Tensor, counts: npt.NDArray[np.int64]) -> torch.Tensor:
    """`logits` with all but the `counts` largest of each row at -inf; ties are kept from the lowest id on."""
    vocab = logits.shape[1]
    rows = np.flatnonzero(counts < vocab)
    if len(rows) == 0:
        return logits
    index, keep = torch.from_numpy(rows), torch.from_numpy(counts[rows])
    part = logits[index]
    thresholds = part.topk(int(keep.max()), dim=-1).values.gather(1, keep[:, None] - 1)
    dropped = part < thresholds
    crowded = torch.nonzero(part.shape[1] - dropped.sum(dim=-1) > keep).squeeze(1)
    if len(crowded):
        dropped[crowded] |= _surplus_ties(part[crowded], thresholds[crowded], keep[crowded])
    logits[index] = part.masked_fill_(dropped, float("-inf"))
    return logits


def _surplus_ties(logits: torch.Tensor, thresholds: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Mask of the tokens at their row's threshold that no longer fit among the `keep` first by value, then id."""
    tied = logits == thresholds
    room = keep - (logits > thresholds).sum(dim=-1)
    return tied & (tied.cumsum(dim=-1) > room[:, None])


def _inverse_cdf(logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """First id whose cumulative probability exceeds the row's number in (0, 1); `numbers` fp64 [n]."""
    weights = torch.exp(logits - logits.amax(dim=-1, keepdim=True)).double()
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1]
    targets = torch.minimum(numbers * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, targets[:, None], right=True).squeeze(1)
