"""Attention metadata of one step for one layer group, built once and used by all its layers.

Rows of one token are decodes: they are batched, in groups of similar length so that padding stays under half. Longer
rows are prefill chunks and run one by one. Pages that lie wholly behind the group's window are never touched. All index
arithmetic is numpy over whole arrays: no Python per token.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]
TableArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PageView:
    """What build_batch needs to know of a group: its page size, its window (0 for none), and the dtype of masks."""

    page_tokens: int
    window_tokens: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Single-token rows attended together.

    `tokens` [b]: their places on the flat token axis, None when they are the whole axis in order. `pages` [b * m]: page
    ids, each row padded to m pages. `bias` [b, 1, 1, m * page_tokens] hides padding and what is behind the window.
    """

    tokens: torch.Tensor | None
    rows: int
    pages: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Consecutive tokens [first, first + count) of one sequence that see `length` gathered positions at most.

    `pages` [m] hold them, or None when the chunk starts at position 0 and its own keys are all there is. `bias`
    [count, length], or None when every token sees exactly what is before it.
    """

    first: int
    count: int
    length: int
    pages: torch.Tensor | None
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


def build_batch(starts: IntArray, counts: IntArray, table: TableArray, view: PageView) -> AttentionBatch:
    """Metadata for rows that compute positions [start, start + count), whose pages are the rows of `table`."""
    size = view.page_tokens
    ends = -(-(starts + counts) // size)
    if table.shape[1] < int(ends.max()):
        raise ValueError(f"page table of {table.shape[1]} pages for a sequence of {int(ends.max())}")
    rows, positions = flat_positions(starts, counts)
    slots = table[rows, positions // size].astype(np.int64) * size + positions % size
    seen = np.maximum(starts + 1 - view.window_tokens, 0) if view.window_tokens else np.zeros_like(starts)
    firsts, pages = np.cumsum(counts) - counts, ends - seen // size
    single = np.flatnonzero(counts == 1)
    whole = len(single) == len(counts)
    decodes = tuple(
        _decode_group(group, None if whole and len(group) == len(counts) else firsts, starts, seen, table, view)
        for group in groups_by_length(single, pages)
    )
    prefills = tuple(
        _prefill_chunk(
            int(firsts[row]), int(starts[row]), int(counts[row]), table[row, seen[row] // size : ends[row]], view
        )
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
    rows: IntArray, firsts: IntArray | None, starts: IntArray, seen: IntArray, table: TableArray, view: PageView
) -> DecodeGroup:
    size = view.page_tokens
    first_pages = seen[rows] // size
    width = int((-(-(starts[rows] + 1) // size) - first_pages).max())
    columns = np.minimum(first_pages[:, None] + np.arange(width), table.shape[1] - 1)
    positions = first_pages[:, None] * size + np.arange(width * size)
    hidden = torch.from_numpy((positions > starts[rows][:, None]) | (positions < seen[rows][:, None]))
    bias = torch.zeros(hidden.shape, dtype=view.dtype).masked_fill_(hidden, float("-inf"))
    return DecodeGroup(
        tokens=None if firsts is None else torch.from_numpy(firsts[rows]),
        rows=len(rows),
        pages=torch.from_numpy(table[rows[:, None], columns].reshape(-1).astype(np.int64)),
        bias=bias.view(len(rows), 1, 1, -1),
    )


def _prefill_chunk(first: int, start: int, count: int, pages: TableArray, view: PageView) -> PrefillChunk:
    window = view.window_tokens
    if start == 0 and not 0 < window < count:
        return PrefillChunk(first, count, count, None, None)
    base = max(0, start + 1 - window) // view.page_tokens * view.page_tokens if window else 0
    length = start + count - base
    # Row i is position start + i, column j is position base + j.
    hidden = torch.ones(count, length, dtype=torch.bool).triu_(start - base + 1)
    if window:
        hidden |= torch.ones(count, length, dtype=torch.bool).tril_(start - base - window)
    bias = torch.zeros(hidden.shape, dtype=view.dtype).masked_fill_(hidden, float("-inf"))
    return PrefillChunk(first, count, length, torch.from_numpy(pages.astype(np.int64)) if start else None, bias)
