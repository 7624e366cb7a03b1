"""Gated activation of the feed-forward block: function(gate) * up, stored as the down projection reads it.

Bit-invariant: a row's bits depend on that row alone. The exponential has a relative error below 3e-7.
"""

from enum import IntEnum

import torch

from forebay.kernels.cpu.op import TOKENS, Activation, Op, Selection, Shape, address
from forebay.kernels.cpu.records import GateRecord, OpKind


class GateFunction(IntEnum):
    """What the gate half goes through."""

    SILU = 0
    GELU_TANH = 1


def gate(gate_up: torch.Tensor, out: Activation, function: GateFunction, select: Selection = TOKENS) -> Op:
    """`out` [rows, width] from `gate_up` [rows, 2 * width] fp32, gate half first; width a multiple of 16."""
    Shape("gate_up", 2 * out.width).check(gate_up)
    record = GateRecord(op=select.header(OpKind.GATE), gate_up=address(gate_up), out=out.record(), function=function)
    capacity = select.capacity(gate_up, out.data)
    return Op(record, (gate_up, *out.tensors), capacity, select.sampled, scratch_bytes=4 * out.width)
