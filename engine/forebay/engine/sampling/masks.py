"""Forbidden tokens as logits of minus infinity.

A mask is a row of int32 words, bit t % 32 of word t // 32 set for every token t that may come. Ids beyond the last
word may not come. The three ways to apply one differ only in speed: masks of grammars allow very few or nearly all.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from forebay.engine.sampling.largest import FloatArray
from forebay.engine.structured.matcher import MaskWords

_SPARSE_SHARE = 8


def empty_mask(vocab: int) -> MaskWords:
    """Words for `vocab` tokens, none of which may come."""
    return np.zeros(-(-vocab // 32), dtype=np.int32)


def mask_of(ids: Iterable[int], vocab: int) -> MaskWords:
    """Words with the bits of those `ids` set that are in the vocabulary."""
    bits = np.zeros(-(-vocab // 32) * 32, dtype=np.uint8)
    bits[[token for token in ids if 0 <= token < vocab]] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def forbid(logits: FloatArray, mask: MaskWords) -> None:
    """Set the logits [vocab] of all tokens that `mask` leaves out to minus infinity, in place."""
    vocab = len(logits)
    bits = _bits(mask, vocab)
    logits[len(bits) :] = -np.inf
    allowed = np.count_nonzero(bits)
    if allowed * _SPARSE_SHARE < vocab:
        ids = np.flatnonzero(bits)
        values = logits[ids]
        logits.fill(-np.inf)
        logits[ids] = values
    elif (len(bits) - allowed) * _SPARSE_SHARE < vocab:
        logits[np.flatnonzero(bits == 0)] = -np.inf
    else:
        covered = logits[: len(bits)]
        covered[:] = np.where(bits.view(np.bool_), covered, np.float32(-np.inf))


def _bits(mask: MaskWords, vocab: int) -> npt.NDArray[np.uint8]:
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocab]
