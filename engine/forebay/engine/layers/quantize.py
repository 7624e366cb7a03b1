"""What weight formats keep of a matrix, the same for every executor.

int8: one symmetric scale for each output row. int4: groups of 32 inputs with a scale and a minimum, w = scale * q +
minimum with q in 0..15 (the form of GGUF's Q4_1, whose values survive exactly); scales and minima are fp16 values.
The C executor packs what the quantizers give; the torch executor multiplies by `rounded` matrices, so both serve the
same weights. Norms, biases and routers are never quantized.
"""

import torch

from forebay.contract.errors import InvalidSpec
from forebay.kernels.cpu.linear.packing import quantize_int4, quantize_int8
from forebay.kernels.cpu.records import QUANT_GROUP


def head_weights(weights: str) -> str:
    """Format of embedding and head when the layers have `weights`: 4 bits would cost too much there."""
    return "int8" if weights == "int4" else weights


def rounded(matrix: torch.Tensor, weights: str) -> torch.Tensor:
    """What a float `matrix` [out, in] is worth after storing it as `weights`: bf16, fp32, int8 or int4; fp32.

    `InvalidSpec` when rows cannot be cut into whole groups.
    """
    match weights:
        case "int8":
            values, scales = quantize_int8(matrix)
            return (values.float() - 128) * scales[:, None]
        case "int4":
            return _rounded_int4(matrix)
        case "bf16":
            return matrix.bfloat16().float()
        case _:
            return matrix.float()


def _rounded_int4(matrix: torch.Tensor) -> torch.Tensor:
    rows, columns = matrix.shape
    if columns % QUANT_GROUP:
        raise InvalidSpec(
            f"int4 needs widths that are multiples of {QUANT_GROUP}, the model has {columns}; use int8", field="dtype"
        )
    values, scales, minima = quantize_int4(matrix, minimums=True)
    whole = values.view(rows, -1, QUANT_GROUP).float() * scales.float()[..., None]
    return (whole if minima is None else whole + minima.float()[..., None]).view(rows, columns)
