"""The bits of a request's logits do not depend on its batch mates, on how its prompt is cut, or on threads."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpu_kernels import VARIANT_NAMES, VARIANTS, library
from forebay.kernels import cpu
from random_decoder import DecoderShape, RandomDecoder, build_decoder

SHAPE = DecoderShape(layers=2, hidden=96, heads=6, kv_heads=2, head_dim=32, inner=160, vocabulary=100, positions=256)
WIDTH = 10  # pages of a row
ROWS = 5
KINDS = list(cpu.NumberKind)


@cache
def decoder(variant: int, kind: cpu.NumberKind, threads: int) -> RandomDecoder:
    """One decoder for each case; its caches are written anew by every run."""
    pages = ROWS * WIDTH
    return build_decoder(
        library(VARIANTS[variant]), kind, shape=SHAPE, pages=pages, max_tokens=700, max_sampled=700, threads=threads
    )


def run_pieces(model: RandomDecoder, prompts: list[list[int]], cuts: list[list[int]]) -> list[torch.Tensor]:
    """Logits of every token of each prompt, when prompt r is given in pieces that end at `cuts[r]`."""
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    for spans in pieces_by_step(cuts):
        step = step_of(prompts, spans)
        model.tape.run(step)
        for (row, _, _), start, count in zip(spans, step.starts, step.counts, strict=True):
            found[row].append(model.logits[start : start + count].clone())
    return [torch.cat(parts) for parts in found]


def step_of(prompts: list[list[int]], spans: list[tuple[int, int, int]]) -> cpu.Step:
    """The step of tokens begin..end of the prompts that `spans` names; every token is sampled."""
    counts = np.asarray([end - begin for _, begin, end in spans], dtype=np.int64)
    tokens = [token for row, begin, end in spans for token in prompts[row][begin:end]]
    positions = [position for _, begin, end in spans for position in range(begin, end)]
    table = np.asarray([[row * WIDTH + i for i in range(WIDTH)] for row, _, _ in spans], dtype=np.int32)
    return cpu.Step(
        tokens=np.asarray(tokens, dtype=np.int64),
        positions=np.asarray(positions, dtype=np.int64),
        starts=np.cumsum(counts) - counts,
        counts=counts,
        tables=(table,),
        sampled=np.arange(len(tokens), dtype=np.int64),
    )


def pieces_by_step(cuts: list[list[int]]) -> Iterator[list[tuple[int, int, int]]]:
    """Step i has piece i of every prompt that has one."""
    for i in range(max(len(row) for row in cuts)):
        yield [(row, ends[i - 1] if i else 0, ends[i]) for row, ends in enumerate(cuts) if i < len(ends)]


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and where each is cut, single tokens (decode) among them."""
    prompts, cuts = [], []
    for _ in range(draw(st.integers(1, ROWS))):
        length = draw(st.integers(1, 140))
        prompts.append([draw(st.integers(0, 99))] * 3 + list(np.random.default_rng(length).integers(0, 100, length)))
        inner = draw(st.lists(st.integers(1, length + 2), max_size=6, unique=True))
        cuts.append([*sorted(inner), length + 3])
    return prompts, cuts


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("variant", range(len(VARIANTS)), ids=VARIANT_NAMES)
@settings(max_examples=6, deadline=None)
@given(batch=batches(), threads=st.sampled_from([1, 2, 3]))
def test_logits_are_bit_equal_alone_and_in_any_batch(
    variant: int, kind: cpu.NumberKind, batch: tuple[list[list[int]], list[list[int]]], threads: int
) -> None:
    prompts, cuts = batch
    together = run_pieces(decoder(variant, kind, threads), prompts, cuts)
    for prompt, found in zip(prompts, together, strict=True):
        alone = run_pieces(decoder(variant, kind, 1), [prompt], [list(range(1, len(prompt) + 1))])[0]
        assert torch.isfinite(alone).all()
        assert torch.equal(found, alone)
