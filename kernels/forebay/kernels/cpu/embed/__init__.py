"""Embedding rows of the step's tokens, widened to fp32 and scaled. Bit-invariant."""

import torch

from forebay.kernels.cpu.op import TOKENS, Op, Shape, address, number_kind
from forebay.kernels.cpu.records import EmbedRecord, NumberKind, OpKind


def embed(table: torch.Tensor, out: torch.Tensor, scale: float = 1.0) -> Op:
    """`out` [tokens, width] fp32 = `table` [vocabulary, width] (bf16 or fp32) at the step's tokens, times `scale`."""
    kind = number_kind(table.dtype)
    if kind not in (NumberKind.BF16, NumberKind.FP32) or table.dim() != 2:
        raise ValueError(f"embedding table {table.dtype}{list(table.shape)}: [vocabulary, width] of bf16 or fp32")
    width = table.shape[1]
    Shape("out", width).check(out)
    record = EmbedRecord(
        op=TOKENS.header(OpKind.EMBED), table=address(table), out=address(out), width=width, scale=scale, kind=kind
    )
    return Op(record, (table, out), TOKENS.capacity(out))
