"""Rounding of weight matrices to 8 and 4 bits, the same for every executor.

int8: one symmetric scale for each output row. int4: groups of 32 inputs with a scale and a minimum, w = scale * q +
minimum with q in 0..15 (the form of GGUF's Q4_1, whose values survive exactly); scales and minima are fp16 values.
The C executor packs these; the torch executor multiplies by `dequantized` matrices, so both serve the same weights.
Norms, biases and routers are never quantized.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

GROUP: Final = 32
_INT8_TOP: Final = 127.0
_INT4_TOP: Final = 15.0
_SMALLEST_FP16: Final = 2.0**-24
"""A group of equal values needs any scale but zero."""
_SMALLEST_FP32: Final = 2.0**-126


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """`values` int8 [out, in] in -127..127 times `scales` fp32 [out]."""

    values: torch.Tensor
    scales: torch.Tensor

    def dequantized(self) -> torch.Tensor:
        """fp32 [out, in]."""
        return self.values.float() * self.scales[:, None]


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """`values` uint8 [out, in padded to groups] in 0..15; `scales` and `minima` fp32 [out, groups], fp16-exact.

    Padding columns multiply activations of zero: they are 0 and count for nothing.
    """

    values: torch.Tensor
    scales: torch.Tensor
    minima: torch.Tensor
    columns: int

    def dequantized(self) -> torch.Tensor:
        """fp32 [out, in]."""
        grouped = self.values.view(*self.scales.shape, GROUP).float()
        whole = grouped * self.scales[..., None] + self.minima[..., None]
        return whole.flatten(1)[:, : self.columns]


def quantize_int8(matrix: torch.Tensor) -> Int8Matrix:
    """Nearest values for a float `matrix` [out, in]; a row of zeros keeps zeros."""
    exact = matrix.float()
    scales = exact.abs().amax(1).div_(_INT8_TOP).clamp_min_(_SMALLEST_FP32)
    values = exact.div(scales[:, None]).round_().clamp_(-_INT8_TOP, _INT8_TOP).to(torch.int8)
    return Int8Matrix(values, scales)


def quantize_int4(matrix: torch.Tensor) -> Int4Matrix:
    """Values for a float `matrix` [out, in] between each group's least and greatest element."""
    rows, columns = matrix.shape
    exact = matrix.float()
    if columns % GROUP:
        # The last element is repeated, so that padding never widens the range of the last group.
        exact = functional.pad(exact[None], (0, -columns % GROUP), mode="replicate")[0]
    grouped = exact.reshape(rows, -1, GROUP)
    least, greatest = grouped.aminmax(dim=-1)
    minima = least.half().float()
    scales = (greatest - least).div_(_INT4_TOP).half().float().clamp_min_(_SMALLEST_FP16)
    values = (grouped - minima[..., None]).div_(scales[..., None]).round_().clamp_(0, _INT4_TOP).to(torch.uint8)
    values = values.flatten(1)
    values[:, columns:] = 0
    return Int4Matrix(values, scales, minima, columns)


def head_weights(weights: str) -> str:
    """Format of embedding and head when the layers have `weights`: 4 bits would cost too much there."""
    return "int8" if weights == "int4" else weights


def rounded(matrix: torch.Tensor, weights: str) -> torch.Tensor:
    """What a float `matrix` [out, in] is worth after storing it as `weights`: bf16, fp32, int8 or int4; fp32."""
    match weights:
        case "int8":
            return quantize_int8(matrix).dequantized()
        case "int4":
            return quantize_int4(matrix).dequantized()
        case "bf16":
            return matrix.bfloat16().float()
        case _:
            return matrix.float()
