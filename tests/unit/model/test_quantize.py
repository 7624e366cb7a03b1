"""What quantized weights keep: error bounds, exact values, and edges of rows and groups."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forebay.contract.errors import InvalidSpec
from forebay.engine.layers.quantize import rounded

GROUP = 32


def matrix(rows: int, columns: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) * scale


@given(st.integers(1, 40), st.integers(1, 100), st.integers(0, 1000), st.sampled_from([1e-4, 1.0, 100.0]))
def test_int8_is_within_half_a_step_of_each_row(rows: int, columns: int, seed: int, scale: float) -> None:
    exact = matrix(rows, columns, seed, scale)
    error = (rounded(exact, "int8") - exact).abs()
    assert bool((error <= 0.501 * exact.abs().amax(1, keepdim=True) / 127).all())


@given(st.integers(1, 20), st.integers(1, 3), st.integers(0, 1000), st.sampled_from([0.01, 1.0, 100.0]))
def test_int4_is_within_half_a_step_of_each_group(rows: int, groups: int, seed: int, scale: float) -> None:
    exact = matrix(rows, groups * GROUP, seed, scale).view(rows, groups, GROUP)
    error = (rounded(exact.flatten(1), "int4").view_as(exact) - exact).abs()
    least, greatest = exact.aminmax(dim=-1, keepdim=True)
    # Rounding the minimum to fp16 moves the whole group, rounding the scale moves its far end 15 times as much.
    slack = (greatest - least) * 2.0**-10 + least.abs() * 2.0**-10
    assert bool((error <= 0.501 * (greatest - least) / 15 + slack).all())


def test_values_of_the_four_bit_form_survive_exactly() -> None:
    levels = torch.randint(0, 16, (8, 3, GROUP), generator=torch.Generator().manual_seed(1))
    levels[..., 0], levels[..., 1] = 0, 15
    scales = (matrix(8, 3, 2).abs() + 0.25).half().float()
    minima = matrix(8, 3, 3).half().float()
    exact = (levels * scales[..., None] + minima[..., None]).flatten(1)
    assert torch.equal(rounded(exact, "int4"), exact)


@pytest.mark.parametrize("weights", ["int8", "int4", "bf16", "fp32"])
def test_rows_of_equal_values_and_zeros_stay_what_they_are(weights: str) -> None:
    exact = torch.cat((torch.zeros(2, 64), torch.full((2, 64), 0.5)))
    torch.testing.assert_close(rounded(exact, weights), exact, rtol=0, atol=1e-6)


def test_int4_refuses_rows_without_whole_groups() -> None:
    with pytest.raises(InvalidSpec, match="multiples of 32, the model has 40") as caught:
        rounded(matrix(4, 40, 5), "int4")
    assert caught.value.field == "dtype"
