"""Paged attention and the write into the pages, of every build, against fp64 one query at a time."""

import itertools

import numpy as np
import pytest
import torch

from cpu_kernels import VARIANT_NAMES, VARIANTS, Rows, library, run
from forebay.kernels import cpu
from forebay.kernels.cpu.attention.reference import attention_reference
from forebay.kernels.cpu.rope_kv.reference import rope_reference

ROWS = Rows(contexts=(1, 70, 130, 64, 17), counts=(1, 21, 1, 3, 17))
KV_HEADS = 2
PAGES = 48
# With bf16 pages the weights are rounded to bf16: half a unit in the last of 8 bits, on values around 1.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def written_cache(
    rows: Rows, step: cpu.Step, page_tokens: int, dim: int, dtype: torch.dtype
) -> tuple[cpu.KvCache, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A cache that is NaN wherever no token lies, and the plain keys and values of each row."""
    cache = cpu.allocate_cache(PAGES, KV_HEADS, page_tokens, dim, dtype)
    cache.pages.fill_(float("nan"))
    plain = []
    for row, context in enumerate(rows.contexts):
        keys, values = (torch.randn(context, KV_HEADS, dim).to(dtype).float() for _ in range(2))
        cache.write(step.tables[0][row].tolist(), keys, values)
        plain.append((keys, values))
    return cache, plain


def check_attention(
    variant: tuple[str, bool], shape: tuple[int, int, int], dtype: torch.dtype, window: int, softcap: float
) -> None:
    """Every query of ROWS against the reference."""
    dim, group, page_tokens = shape
    torch.manual_seed(dim * 1000 + group * 10 + page_tokens)
    heads = KV_HEADS * group
    step = ROWS.step(page_tokens, PAGES)
    cache, plain = written_cache(ROWS, step, page_tokens, dim, dtype)
    tokens = len(step.tokens)
    qkv = torch.randn(tokens, (heads + 2 * KV_HEADS) * dim)
    qkv[:, : heads * dim] = (qkv[:, : heads * dim] * dim**-0.5).to(dtype).float()
    out = torch.full((tokens, heads * dim), float("nan"))
    run(library(variant), [cpu.attention(qkv, out, cache, window, softcap)], step)
    for token in range(tokens):
        query = qkv[token, : heads * dim].view(heads, dim)
        keys, values = plain[ROWS.row_of(token)]
        wanted = attention_reference(query, keys, values, int(step.positions[token]), window, softcap)
        assert (out[token].view(heads, dim) - wanted).abs().max() < TOLERANCE[dtype], (token, step.positions[token])


@pytest.mark.parametrize("variant", VARIANTS[::2], ids=VARIANT_NAMES[::2])
@pytest.mark.parametrize(
    ("dim", "group", "page_tokens"),
    [
        *itertools.product((64, 80, 96, 128, 256), (1, 3), (16, 64)),
        *((64, group, 32) for group in (2, 4, 5, 6, 7, 8)),
    ],
)
def test_attention_over_shapes(variant: tuple[str, bool], dim: int, group: int, page_tokens: int) -> None:
    for dtype in TOLERANCE:
        check_attention(variant, (dim, group, page_tokens), dtype, 0, 0.0)


@pytest.mark.parametrize("variant", VARIANTS, ids=VARIANT_NAMES)
def test_equal_values_come_out_as_they_are(variant: tuple[str, bool]) -> None:
    rows = Rows((77,), (30,))
    step = rows.step(16, PAGES)
    cache = cpu.allocate_cache(PAGES, 1, 16, 64)
    cache.pages.fill_(float("nan"))
    cache.write(step.tables[0][0].tolist(), torch.randn(77, 1, 64), torch.full((77, 1, 64), 1.5))
    out = torch.zeros(30, 2 * 64)
    run(library(variant), [cpu.attention(torch.randn(30, 4 * 64), out, cache)], step)
    assert torch.allclose(out, torch.full_like(out, 1.5), rtol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS[::2], ids=VARIANT_NAMES[::2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("window", "softcap"), [(1, 0.0), (16, 0.0), (37, 5.0), (64, 0.0), (1000, 0.0), (0, 2.0)])
def test_attention_with_windows_and_a_cap(
    variant: tuple[str, bool], dtype: torch.dtype, window: int, softcap: float
) -> None:
    check_attention(variant, (64, 3, 32), dtype, window, softcap)


@pytest.mark.parametrize("variant", VARIANTS[::2], ids=VARIANT_NAMES[::2])
def test_scores_far_from_zero_do_not_overflow(variant: tuple[str, bool]) -> None:
    step = Rows((100,), (1,)).step(16, PAGES)
    cache, plain = written_cache(Rows((100,), (1,)), step, 16, 64, torch.float32)
    qkv, out = torch.randn(1, 6 * 64) * 100, torch.zeros(1, 2 * 64)
    run(library(variant), [cpu.attention(qkv, out, cache)], step)
    wanted = attention_reference(qkv[0, :128].view(2, 64), *plain[0], 99)
    assert (out.view(2, 64) - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("variant", VARIANTS[::2], ids=VARIANT_NAMES[::2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("dim", "rotary", "normed"), [(64, 64, False), (80, 80, True), (128, 32, True)])
def test_keys_and_values_land_in_their_pages(
    variant: tuple[str, bool], dtype: torch.dtype, dim: int, rotary: int, normed: bool
) -> None:
    torch.manual_seed(dim)
    heads, rows = 6, Rows((33, 5), (20, 1))
    step = rows.step(16, PAGES)
    cache = cpu.allocate_cache(PAGES, KV_HEADS, 16, dim, dtype)
    cache.pages.zero_()
    angles = torch.arange(64)[:, None] * 10.0 ** -torch.arange(rotary // 2)[None, :].float()
    rope = cpu.Rope(angles.cos(), angles.sin())
    norms = cpu.HeadNorm(torch.rand(dim) + 0.5, torch.rand(dim) + 0.5, 1e-6) if normed else None
    qkv = torch.randn(len(step.tokens), (heads + 2 * KV_HEADS) * dim)
    before = qkv.view(len(step.tokens), -1, dim).clone()
    run(library(variant), [cpu.rope_kv(qkv, cache, rope, 0.25, norms)], step)
    positions = torch.from_numpy(step.positions)
    tables = rope.cosine[positions], rope.sine[positions]
    queries = rope_reference(before[:, :heads], *tables, norms.query if norms else None, 1e-6) * 0.25
    keys = rope_reference(before[:, heads : heads + KV_HEADS], *tables, norms.key if norms else None, 1e-6)
    found = qkv.view(len(step.tokens), -1, dim)[:, :heads]
    assert torch.allclose(found.double(), queries, atol=1e-5)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for token in range(len(step.tokens)):
        row, position = rows.row_of(token), int(step.positions[token])
        stored_keys, stored_values = cache.read(step.tables[0][row].tolist(), position + 1)
        assert torch.allclose(stored_keys[position].double(), keys[token], atol=tolerance)
        assert torch.equal(stored_values[position], before[token, heads + KV_HEADS :].to(dtype).float())


def test_a_cache_reads_back_what_was_written() -> None:
    cache = cpu.allocate_cache(4, 2, 32, 80, torch.float32)
    keys, values = torch.randn(50, 2, 80), torch.randn(50, 2, 80)
    cache.write([3, 1], keys, values)
    cache.copy_page(1, 2)
    found = cache.read([3, 2], 50)
    assert torch.equal(found[0], keys)
    assert torch.equal(found[1], values)


def test_shapes_that_the_library_does_not_take_are_refused() -> None:
    for page_tokens, dim in ((8, 64), (24, 64), (16, 72), (16, 1024), (0, 64)):
        with pytest.raises(ValueError, match="is needed"):
            cpu.allocate_cache(1, 1, page_tokens, dim)
    cache = cpu.allocate_cache(1, 2, 16, 64)
    with pytest.raises(ValueError, match="query heads"):
        cpu.attention(torch.zeros(1, 7 * 64), torch.zeros(1, 3 * 64), cache)
    tape = cpu.Tape(library(VARIANTS[2]), [], 4)
    short = np.zeros(3, dtype=np.int64)
    with pytest.raises(ValueError, match="int64"):
        tape.run(cpu.Step(short.astype(np.int32), short, short, short, ()))
    with pytest.raises(ValueError, match="fit"):
        tape.run(cpu.Step(short, short, short[:1], short[:1] + 4, ()))
