"""Rounding of weights: error bounds, exact values, and edges of rows and groups."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.layers.quantize import GROUP, quantize_int4, quantize_int8, rounded


def matrix(rows: int, columns: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) * scale


@given(st.integers(1, 40), st.integers(1, 100), st.integers(0, 1000), st.sampled_from([1e-4, 1.0, 100.0]))
def test_int8_is_within_half_a_step_of_each_row(rows: int, columns: int, seed: int, scale: float) -> None:
    exact = matrix(rows, columns, seed, scale)
    error = (quantize_int8(exact).dequantized() - exact).abs()
    assert bool((error <= 0.501 * exact.abs().amax(1, keepdim=True) / 127).all())


@given(st.integers(1, 20), st.integers(1, 100), st.integers(0, 1000), st.sampled_from([0.01, 1.0, 100.0]))
def test_int4_is_within_half_a_step_of_each_group(rows: int, columns: int, seed: int, scale: float) -> None:
    exact = matrix(rows, columns, seed, scale)
    packed = quantize_int4(exact)
    error = (packed.dequantized() - exact).abs()
    # A minimum rounded to fp16 moves the whole group by up to 2^-11 of it; a scale does by 15 times as much of itself.
    slack = 15 * packed.scales * 2.0**-10 + packed.minima.abs() * 2.0**-10
    bound = (0.501 * packed.scales + slack).repeat_interleave(GROUP, dim=1)[:, :columns]
    assert bool((error <= bound).all())
    assert packed.dequantized().shape == exact.shape


def test_values_of_the_four_bit_form_survive_exactly() -> None:
    levels = torch.randint(0, 16, (8, 3, GROUP), generator=torch.Generator().manual_seed(1))
    levels[..., 0], levels[..., 1] = 0, 15
    scales = matrix(8, 3, 2).abs().half().float() + 0.25
    minima = matrix(8, 3, 3).half().float()
    exact = (levels * scales.half().float()[..., None] + minima[..., None]).flatten(1)
    assert torch.equal(quantize_int4(exact).dequantized(), exact)


@pytest.mark.parametrize("weights", ["int8", "int4", "bf16", "fp32"])
def test_rows_of_equal_values_and_zeros_stay_finite(weights: str) -> None:
    exact = torch.cat((torch.zeros(2, 64), torch.full((2, 64), 0.5)))
    torch.testing.assert_close(rounded(exact, weights), exact, rtol=0, atol=1e-6)


def test_padding_columns_hold_nothing() -> None:
    packed = quantize_int4(matrix(4, 40, 5))
    assert packed.values.shape == (4, 64)
    assert not packed.values[:, 40:].any()
