"""Linear layers with bf16, fp32, int8 or int4 weights, out = x weight^T (+ bias) (+ out).

Weights are packed once by `pack_linear` (packing.py). bf16 weights read bf16 activations and add in fp32; int8 and int4
weights read int8 activations with a scale for each 64 inputs. Bit-invariant for every kind: each output is summed in
one fixed order of k whatever the number of rows and threads. Between CPUs results differ in the rounding of fp32 sums
only, and for bf16 in the order of rounding inside a pair where the CPU has avx512_bf16.
"""

import torch

from forebay.kernels.cpu.linear.packing import (
    PackedLinear,
    activation_kind,
    pack_int4_values,
    pack_linear,
    stack_experts,
)
from forebay.kernels.cpu.op import TOKENS, Activation, Op, Selection, Shape, address
from forebay.kernels.cpu.records import LinearRecord, NumberKind, OpKind

__all__ = ["PackedLinear", "activation_kind", "linear", "pack_int4_values", "pack_linear", "stack_experts"]


def linear(
    x: Activation,
    weight: PackedLinear,
    out: torch.Tensor,
    *,
    accumulate: bool = False,
    select: Selection = TOKENS,
    offsets: torch.Tensor | None = None,
) -> Op:
    """`out` [rows, n] fp32 = `x` [rows, k] times the packed [n, k], or added to `out` with `accumulate`.

    With stacked experts, `offsets` [experts + 1] int32 says which rows each expert has; it is read at run time.
    """
    Shape("out", weight.n).check(out)
    if x.width != weight.k or x.kind != activation_kind(weight.kind).storage:
        raise ValueError(f"linear: {x.kind.name} rows of {x.width} for {weight.kind.name} weights of {weight.k}")
    if weight.kind == NumberKind.INT4 and x.group_sums is None:
        raise ValueError("linear: int4 weights need activations with group sums")
    if (offsets is None) != (weight.experts == 1 and not weight.stacked):
        raise ValueError(f"linear: offsets are given for stacked experts only; {weight.experts} experts")
    record = LinearRecord(
        op=select.header(OpKind.LINEAR),
        x=x.record(),
        weight=address(weight.data),
        scales=address(weight.scales),
        mins=address(weight.mins),
        bias=address(weight.bias),
        out=address(out),
        offsets=address(offsets),
        n=weight.n,
        k=weight.k,
        expert_bytes=weight.data.nbytes // weight.experts,
        expert_scales_bytes=weight.scales.nbytes // weight.experts if weight.scales is not None else 0,
        experts=weight.experts,
        kind=weight.kind,
        accumulate=accumulate,
    )
    keep = (*x.tensors, weight.data, weight.scales, weight.mins, weight.bias, out, offsets)
    return Op(record, keep, select.capacity(x.data, out), select.sampled)
