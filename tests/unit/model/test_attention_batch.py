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
    row_of, positions = flat_positions(starts, counts)
    pages = [tables[row][p // PAGE_TOKENS] for row, p in zip(row_of, positions, strict=True)]
    assert batch.slots.tolist() == [
        page * PAGE_TOKENS + p % PAGE_TOKENS for page, p in zip(pages, positions, strict=True)
    ]


@settings(deadline=None)
@given(ROWS)
def test_every_row_is_attended_once_up_to_its_own_position(rows: list[tuple[int, int]]) -> None:
    starts, counts = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    batch = build_batch(starts, counts, [range(40)] * len(rows), PAGE_TOKENS, torch.float32)
    firsts = (np.cumsum(counts) - counts).tolist()
    places = [range(len(rows)) if group.tokens is None else group.tokens.tolist() for group in batch.decodes]
    assert sorted([place for group in places for place in group] + [chunk.first for chunk in batch.prefills]) == firsts
    for group, group_places in zip(batch.decodes, places, strict=True):
        seen = (group.bias == 0).sum(dim=-1).flatten().tolist()
        assert seen == [int(starts[firsts.index(place)]) + 1 for place in group_places]
    assert [chunk.length for chunk in batch.prefills] == (starts + counts)[counts > 1].tolist()


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
