"""Step metadata: every token has its slot, every row is attended exactly once, padding stays bounded."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.engine.attention.batch import (
    AttentionBatch,
    IntArray,
    PageView,
    TableArray,
    build_batch,
    flat_positions,
    groups_by_length,
)

PAGE_TOKENS = 4
ROWS = st.lists(st.tuples(st.integers(0, 70), st.integers(1, 9)), min_size=1, max_size=12)


WINDOWS = st.sampled_from([0, 1, 3, 4, 5, 9, 40])


def view(window: int = 0) -> PageView:
    return PageView(PAGE_TOKENS, window, torch.float32)


def arrays(rows: list[tuple[int, int]]) -> tuple[IntArray, IntArray]:
    starts, counts = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return starts, counts


def own_pages(rows: list[tuple[int, int]]) -> TableArray:
    """A table in which no two rows share a page; padding is page 0."""
    table, next_page = np.zeros((len(rows), 20), dtype=np.int32), 1
    for row, (start, count) in enumerate(rows):
        used = -(-(start + count) // PAGE_TOKENS)
        table[row, :used] = np.arange(next_page, next_page + used)
        next_page += used
    return table


@settings(deadline=None, max_examples=60)
@given(ROWS, WINDOWS)
def test_slots_follow_the_page_tables(rows: list[tuple[int, int]], window: int) -> None:
    starts, counts = arrays(rows)
    table = own_pages(rows)
    batch = build_batch(starts, counts, table, view(window))
    row_of, positions = flat_positions(starts, counts)
    pages = [int(table[row, p // PAGE_TOKENS]) for row, p in zip(row_of, positions, strict=True)]
    assert batch.slots.tolist() == [
        page * PAGE_TOKENS + p % PAGE_TOKENS for page, p in zip(pages, positions, strict=True)
    ]


def slots_of(pages: torch.Tensor) -> torch.Tensor:
    return (pages[:, None] * PAGE_TOKENS + torch.arange(PAGE_TOKENS)).flatten()


def seen_by_decodes(batch: AttentionBatch) -> dict[int, list[int]]:
    """Slots that each decoding token sees, by its place on the flat axis."""
    seen: dict[int, list[int]] = {}
    for group in batch.decodes:
        places = list(range(group.rows)) if group.tokens is None else group.tokens.tolist()
        rows = zip(places, slots_of(group.pages).view(group.rows, -1), group.bias.flatten(1), strict=True)
        seen |= {place: slots[bias == 0].tolist() for place, slots, bias in rows}
    return seen


def seen_by_chunks(batch: AttentionBatch) -> dict[int, list[int]]:
    """Slots that each token of a chunk sees, by its place on the flat axis."""
    seen: dict[int, list[int]] = {}
    for chunk in batch.prefills:
        own = batch.slots[chunk.first : chunk.first + chunk.count]
        slots = own if chunk.pages is None else slots_of(chunk.pages)[: chunk.length]
        bias = torch.ones(chunk.count, chunk.length).triu(1) if chunk.bias is None else chunk.bias
        seen |= {chunk.first + token: slots[row == 0].tolist() for token, row in enumerate(bias)}
    return seen


@settings(deadline=None, max_examples=60)
@given(ROWS, WINDOWS)
def test_every_token_sees_exactly_its_window_of_its_own_sequence(rows: list[tuple[int, int]], window: int) -> None:
    starts, counts = arrays(rows)
    table = own_pages(rows)
    batch = build_batch(starts, counts, table, view(window))
    row_of, positions = flat_positions(starts, counts)
    expected = {}
    for place, (row, position) in enumerate(zip(row_of.tolist(), positions.tolist(), strict=True)):
        visible = range(max(0, position + 1 - window) if window else 0, position + 1)
        expected[place] = [int(table[row, p // PAGE_TOKENS]) * PAGE_TOKENS + p % PAGE_TOKENS for p in visible]
    assert seen_by_decodes(batch) | seen_by_chunks(batch) == expected


def test_a_table_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="page table of 2 pages for a sequence of 3"):
        build_batch(*arrays([(8, 1)]), np.zeros((1, 2), dtype=np.int32), view())


@settings(deadline=None)
@given(ROWS)
def test_flat_positions_enumerate_each_row(rows: list[tuple[int, int]]) -> None:
    starts, counts = arrays(rows)
    row_of, positions = flat_positions(starts, counts)
    expected = [(row, p) for row, (start, count) in enumerate(rows) for p in range(start, start + count)]
    assert list(zip(row_of.tolist(), positions.tolist(), strict=True)) == expected


@settings(deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=40))
def test_groups_cover_all_rows_and_waste_less_than_half(lengths: list[int]) -> None:
    pages = np.array(lengths, dtype=np.int64)
    groups = groups_by_length(np.arange(len(pages)), pages)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(pages)))
    for group in groups:
        assert pages[group].min() * 2 >= pages[group].max()
    assert len(groups) <= 9
