"""Attention metadata of one step, built once and used by every layer.

Rows of one token are decodes: they are batched, in groups of similar length so that padding stays under half. Longer
rows are prefill chunks and run one by one. All index arithmetic is numpy over whole arrays: no Python per token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Single-token rows attended together.

    `tokens` [b]: their places on the flat token axis, None when they are the whole axis in order. `pages` [b * m]: page
    ids, each row padded to m pages. `bias` [b, 1, 1, m * page_tokens] hides padding.
    """

    tokens: torch.Tensor | None
    rows: int
    pages: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Consecutive tokens [first, first + count) of one sequence; `length` positions are seen by the last of them.

    `pages` [m] cover them; `bias` [count, length], or None when the chunk starts at position 0.
    """

    first: int
    count: int
    length: int
    pages: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """All of one step: `slots` [n] say where each token's key and value go (page * page_tokens + row)."""

    slots: torch.Tensor
    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillChunk, ...]


def flat_positions(starts: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """For rows of `counts` tokens from `starts`: each flat token's row and position, both [sum(counts)]."""
    rows = np.repeat(np.arange(len(counts)), counts)
    firsts = np.cumsum(counts) - counts
    return rows, np.arange(len(rows)) - np.repeat(firsts - starts, counts)


def build_batch(
    starts: IntArray,
    counts: IntArray,
    page_tables: Sequence[Sequence[int]],
    page_tokens: int,
    dtype: torch.dtype,
) -> AttentionBatch:
    """Metadata for rows that compute positions [start, start + count); `dtype` is the attention's, for the masks."""
    pages = -(-(starts + counts) // page_tokens)
    table = np.zeros((len(counts), int(pages.max())), dtype=np.int64)
    for row, ids in enumerate(page_tables):
        used = int(pages[row])
        table[row, :used] = ids[:used]
    rows, positions = flat_positions(starts, counts)
    slots = table[rows, positions // page_tokens] * page_tokens + positions % page_tokens
    firsts = np.cumsum(counts) - counts
    single = np.flatnonzero(counts == 1)
    whole = len(single) == len(counts)
    decodes = tuple(
        _decode_group(group, None if whole and len(group) == len(counts) else firsts, starts, table, page_tokens, dtype)
        for group in groups_by_length(single, pages)
    )
    prefills = tuple(
        _prefill_chunk(int(firsts[row]), int(starts[row]), int(counts[row]), table[row, : pages[row]], dtype)
        for row in np.flatnonzero(counts > 1)
    )
    return AttentionBatch(torch.from_numpy(slots), decodes, prefills)


def groups_by_length(rows: IntArray, pages: IntArray) -> list[IntArray]:
    """`rows` split so that no group's shortest row has under half the pages of its longest; order kept in a group."""
    if len(rows) == 0:
        return []
    longest_first = rows[np.argsort(-pages[rows], kind="stable")]
    groups: list[IntArray] = []
    while len(longest_first):
        lengths = pages[longest_first]
        cut = int(np.count_nonzero(lengths * 2 >= lengths[0]))
        groups.append(np.sort(longest_first[:cut]))
        longest_first = longest_first[cut:]
    return groups


def _decode_group(
    rows: IntArray, firsts: IntArray | None, starts: IntArray, table: IntArray, page_tokens: int, dtype: torch.dtype
) -> DecodeGroup:
    lengths = starts[rows] + 1
    width = int(-(-lengths.max() // page_tokens))
    hidden = torch.from_numpy(np.arange(width * page_tokens)[None, :] >= lengths[:, None])
    bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
    return DecodeGroup(
        tokens=None if firsts is None else torch.from_numpy(firsts[rows]),
        rows=len(rows),
        pages=torch.from_numpy(table[rows, :width].reshape(-1)),
        bias=bias.view(len(rows), 1, 1, -1),
    )


def _prefill_chunk(first: int, start: int, count: int, pages: IntArray, dtype: torch.dtype) -> PrefillChunk:
    bias = None
    if start:
        ahead = torch.ones(count, start + count, dtype=torch.bool).triu_(start + 1)
        bias = torch.zeros(ahead.shape, dtype=dtype).masked_fill_(ahead, float("-inf"))
    return PrefillChunk(first, count, start + count, torch.from_numpy(pages), bias)
