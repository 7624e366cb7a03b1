"""fp32 rows as the activation that a linear layer of another kind reads.

int8: symmetric, a scale for each 64 elements, q = round(x * 127 / max|x|). Bit-invariant: a row's bits depend on that
row alone.
"""

import torch

from forebay.kernels.cpu.op import TOKENS, Activation, Op, Selection, Shape, address
from forebay.kernels.cpu.records import ConvertRecord, OpKind


def convert(x: torch.Tensor, out: Activation, select: Selection = TOKENS) -> Op:
    """Store `x` [rows, width] fp32 as `out`."""
    Shape("x", out.width).check(x)
    record = ConvertRecord(op=select.header(OpKind.CONVERT), x=address(x), out=out.record())
    return Op(record, (x, *out.tensors), select.capacity(x, out.data), select.sampled)
