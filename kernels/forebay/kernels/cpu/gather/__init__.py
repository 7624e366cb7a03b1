"""Moves the rows whose logits are wanted to the front of a buffer. Bit-invariant: rows are copied."""

import torch

from forebay.kernels.cpu.op import SAMPLED, Op, Shape, address
from forebay.kernels.cpu.records import GatherRecord, OpKind


def gather(x: torch.Tensor, out: torch.Tensor) -> Op:
    """`out` [sampled, width] = `x` [tokens, width] at the step's sampled tokens; both fp32, not the same buffer."""
    Shape("x", out.shape[1]).check(x)
    Shape("out", x.shape[1]).check(out)
    if x.data_ptr() == out.data_ptr():
        raise ValueError("gather: x and out are one buffer")
    record = GatherRecord(op=SAMPLED.header(OpKind.GATHER), x=address(x), out=address(out), width=x.shape[1])
    return Op(record, (x, out), SAMPLED.capacity(out), sampled=True)
