"""Step metadata: every token has its slot, every row is attended exactly once, padding stays bounded."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.engine.attention.batch import build_batch, flat_positions, groups_by_length

PAGE_TOKENS = 4
ROWS = st.lists(st.tuples(st.integers(0, 70), st.integers(1, 9)), min_size=1, max_size=12)


@settings(deadline=None)
@given(ROWS)
def test_slots_follow_the_page_tables(rows: list[tuple[int, int]]) -> None:
    starts, counts = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    tables, next_page = [], 1
    for start, count in rows:
        used = -(-(start + count) // PAGE_TOKENS)
        tables.append(tuple(range(next_page, next_page + used)))
        next_page += used
    batch = build_batch(starts, counts, tables, PAGE_TOKENS, torch.float32)
    expected = [
        tables[row][p // PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS
        for row, (start, count) in enumerate(rows)
        for p in range(start, start + count)
    ]
    assert batch.slots.tolist() == expected
    firsts = (np.cumsum(counts) - counts).tolist()
    decoded = [
        place
        for group in batch.decodes
        for place in (range(len(rows)) if group.tokens is None else group.tokens.tolist())
    ]
    chunked = [chunk.first for chunk in batch.prefills]
    assert sorted(decoded + chunked) == firsts
    for group in batch.decodes:
        seen = (group.bias == 0).sum(dim=-1).flatten().tolist()
        places = range(len(rows)) if group.tokens is None else group.tokens.tolist()
        assert seen == [int(starts[firsts.index(place)]) + 1 for place in places]


@settings(deadline=None)
@given(ROWS)
def test_flat_positions_enumerate_each_row(rows: list[tuple[int, int]]) -> None:
    starts, counts = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
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
