"""Torch kernels against their fp64 references, over odd shapes and both precisions."""

from dataclasses import replace

import pytest
import torch

from forebay.kernels.gelu_mul import gelu_mul
from forebay.kernels.gelu_mul.reference import gelu_mul_reference
from forebay.kernels.paged_attention import Scoring, decode_attention, gather_pages, prefill_attention, write_pages
from forebay.kernels.paged_attention.reference import paged_attention_reference
from forebay.kernels.rms_norm import rms_norm
from forebay.kernels.rms_norm.reference import rms_norm_reference
from forebay.kernels.rope import rope, rope_tables
from forebay.kernels.rope.reference import rope_reference
from forebay.kernels.silu_mul import silu_mul
from forebay.kernels.silu_mul.reference import silu_mul_reference

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 4e-2}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCES), ids=["fp32", "bf16"])
GENERATOR = torch.Generator().manual_seed(3)


def randn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(dtype)


def assert_close(value: torch.Tensor, reference: torch.Tensor) -> None:
    tolerance = TOLERANCES[value.dtype]
    torch.testing.assert_close(value.double(), reference, rtol=tolerance, atol=tolerance)


@DTYPES
@pytest.mark.parametrize("shape", [(1, 8), (3, 60), (17, 576)])
def test_rms_norm_equals_its_formula(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = randn(*shape, dtype=dtype), randn(shape[1], dtype=dtype)
    assert_close(rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5))


@DTYPES
@pytest.mark.parametrize("shape", [(1, 2), (5, 62), (9, 3072)])
def test_silu_mul_equals_its_formula(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = randn(*shape, dtype=dtype)
    assert_close(silu_mul(x), silu_mul_reference(x))


@DTYPES
@pytest.mark.parametrize("shape", [(1, 2), (5, 62), (9, 3072)])
def test_gelu_mul_equals_its_formula(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = randn(*shape, dtype=dtype)
    assert_close(gelu_mul(x), gelu_mul_reference(x))


@DTYPES
@pytest.mark.parametrize("head_dim", [2, 20, 64])
def test_rope_is_a_rotation_by_position(head_dim: int, dtype: torch.dtype) -> None:
    frequencies = 1.0 / 100.0 ** (torch.arange(0, head_dim, 2) / head_dim)
    positions = torch.tensor([0, 1, 5, 99])
    x = randn(4, 3, head_dim, dtype=dtype)
    assert_close(rope(x, *rope_tables(frequencies, positions, dtype)), rope_reference(x, positions, frequencies))


SCORINGS = {
    "plain": Scoring(0.25),
    "capped": Scoring(0.5, softcap=2.0),
    "with sinks": Scoring(0.25, sinks=torch.linspace(-1, 2, 12)),
}


@DTYPES
@pytest.mark.parametrize("name", list(SCORINGS))
@pytest.mark.parametrize("window", [0, 3, 6, 11])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 16), (9, 3, 64), (6, 2, 20), (5, 1, 8)])
def test_paged_attention_equals_the_reference(
    heads: int, kv_heads: int, head_dim: int, window: int, name: str, dtype: torch.dtype
) -> None:
    page_tokens, length = 4, 11
    table = [5, 2, 7]
    scoring = SCORINGS[name]
    if scoring.sinks is not None:
        scoring = replace(scoring, sinks=scoring.sinks[:heads])
    keys, values = (torch.zeros(9, page_tokens, kv_heads, head_dim, dtype=dtype) for _ in range(2))
    slots = torch.tensor([table[p // page_tokens] * page_tokens + p % page_tokens for p in range(length)])
    fresh_keys, fresh_values = (randn(length, kv_heads, head_dim, dtype=dtype) for _ in range(2))
    write_pages(keys, slots, fresh_keys)
    write_pages(values, slots, fresh_values)
    query = randn(length, heads, head_dim, dtype=dtype)
    reference = paged_attention_reference(query, keys, values, table, 0, scoring, window)

    def bias(positions: int, start: int) -> torch.Tensor:
        distance = torch.arange(start, length)[:, None] - torch.arange(positions)[None, :]
        hidden = (distance < 0) | (distance >= (window or positions))
        return torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, float("-inf"))

    whole = prefill_attention(query, fresh_keys, fresh_values, bias(length, 0) if window else None, scoring)
    assert_close(whole, reference)

    seen_keys, seen_values = (gather_pages(pool, torch.tensor(table)) for pool in (keys, values))
    chunk = prefill_attention(query[6:], seen_keys[:length], seen_values[:length], bias(length, 6), scoring)
    assert_close(chunk, reference[6:])

    last = bias(len(table) * page_tokens, length - 1).view(1, 1, 1, -1)
    assert_close(decode_attention(query[-1:], seen_keys[None], seen_values[None], last, scoring), reference[-1:])


def test_mismatched_shapes_are_refused() -> None:
    x = torch.zeros(2, 6)
    with pytest.raises(ValueError, match="rms_norm"):
        rms_norm(x, torch.ones(5), 1e-5)
    with pytest.raises(ValueError, match="rope"):
        rope(torch.zeros(2, 1, 6), torch.zeros(2, 1, 4), torch.zeros(2, 1, 4))
    with pytest.raises(ValueError, match="silu_mul"):
        silu_mul(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="gelu_mul"):
        gelu_mul(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="write_pages"):
        write_pages(torch.zeros(2, 4, 1, 8), torch.zeros(3, dtype=torch.int64), torch.zeros(2, 1, 8))
    with pytest.raises(ValueError, match="decode_attention"):
        decode_attention(
            torch.zeros(1, 3, 8),
            torch.zeros(1, 4, 2, 8),
            torch.zeros(1, 4, 2, 8),
            torch.zeros(1, 1, 1, 4),
            Scoring(1.0),
        )
    with pytest.raises(ValueError, match="prefill_attention"):
        prefill_attention(torch.zeros(3, 2, 8), torch.zeros(4, 2, 8), torch.zeros(4, 2, 8), None, Scoring(1.0))
