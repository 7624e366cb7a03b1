"""RMS norm of fp32 rows into the next linear layer's activation, or added to the residual stream.

out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight. Bit-invariant: a row's bits depend on that row alone, for every kind
of output.
"""

import torch

from forebay.kernels.cpu.op import TOKENS, Activation, Op, Selection, Shape, address
from forebay.kernels.cpu.records import ActivationRecord, NormRecord, NumberKind, OpKind


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: Activation, select: Selection = TOKENS) -> Op:
    """Normalise `x` [rows, width] fp32 with `weight` [width] fp32 into `out`; width a multiple of 16."""
    return _record(x, weight, eps, out.record(), None, (*out.tensors,), select)


def norm_add(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor, select: Selection = TOKENS
) -> Op:
    """residual += norm(x), as the norms after attention and feed-forward of Gemma do; both [rows, width] fp32."""
    Shape("residual", x.shape[1]).check(residual)
    shape_only = ActivationRecord(width=x.shape[1], kind=NumberKind.FP32)
    return _record(x, weight, eps, shape_only, residual, (), select)


def _record(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: ActivationRecord,
    residual: torch.Tensor | None,
    keep: tuple[torch.Tensor | None, ...],
    select: Selection,
) -> Op:
    width = int(out.width)
    Shape("x", width).check(x)
    if weight.shape != (width,) or weight.dtype != torch.float32 or width % 16:
        raise ValueError(f"norm: weight {weight.dtype}{list(weight.shape)} for rows of {width}, a multiple of 16")
    record = NormRecord(
        op=select.header(OpKind.NORM),
        x=address(x),
        weight=address(weight),
        out=out,
        residual=address(residual),
        eps=eps,
    )
    capacity = select.capacity(*(rows for rows in (x, residual, *keep[:1]) if rows is not None))
    return Op(record, (x, weight, residual, *keep), capacity, select.sampled, scratch_bytes=4 * width)
