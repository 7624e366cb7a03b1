"""Weights of linear layers in the library's order: panels of 48 output columns, read front to back by the kernels.

fp32 [panel][k][48]; bf16 [panel][k / 2][48][2]; int8 as w + 128 in [panel][k / 4][48][4] with a scale a column; int4 in
[panel][k / 32][4][48][4] bytes, low half k = 4 i + b, high half k + 16, with fp16 scales (and minimums) a group of 32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from forebay.kernels.cpu.records import PANEL_COLUMNS, QUANT_GROUP, NumberKind


class ActivationNeed(Enum):
    """What a kind of weights reads: the kind to allocate and its storage."""

    FP32 = (NumberKind.FP32, NumberKind.FP32)
    BF16 = (NumberKind.BF16, NumberKind.BF16)
    INT8 = (NumberKind.INT8, NumberKind.INT8)
    INT4 = (NumberKind.INT4, NumberKind.INT8)

    @property
    def allocate(self) -> NumberKind:
        """Kind to pass to `allocate_activation`."""
        return self.value[0]

    @property
    def storage(self) -> NumberKind:
        """Kind of the stored elements."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """An [n, k] matrix, or `experts` of them, packed as `kind`; `bias` is padded to whole panels."""

    kind: NumberKind
    n: int
    k: int
    data: torch.Tensor
    scales: torch.Tensor | None = None
    mins: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    experts: int = 1
    stacked: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes that stay in memory."""
        parts = (self.data, self.scales, self.mins, self.bias)
        return sum(part.nbytes for part in parts if part is not None)


def activation_kind(weights: NumberKind) -> ActivationNeed:
    """What a linear layer with such weights reads."""
    return ActivationNeed[weights.name]


def pack_linear(
    weight: torch.Tensor, kind: NumberKind, bias: torch.Tensor | None = None, *, minimums: bool = False
) -> PackedLinear:
    """Pack `weight` [n, k] (any float dtype), quantized where `kind` says so; `bias` [n] or None.

    int8: a symmetric scale for each output. int4: groups of 32, symmetric, or with a minimum each when `minimums`.
    `ValueError` unless k is a multiple of 16 (32 for int4).
    """
    n, k = weight.shape
    if k % (QUANT_GROUP if kind == NumberKind.INT4 else 16):
        raise ValueError(f"pack_linear: k = {k} is not a multiple of {QUANT_GROUP if kind == NumberKind.INT4 else 16}")
    if kind == NumberKind.INT4:
        return pack_int4_values(*quantize_int4(weight, minimums=minimums), bias=bias)
    padded_bias = _pad(bias.float()) if bias is not None else None
    if kind == NumberKind.INT8:
        values, scales = quantize_int8(weight)
        return PackedLinear(kind, n, k, _interleave(_pad(values), 4), _pad(scales), bias=padded_bias)
    dtype, pack = (torch.bfloat16, 2) if kind == NumberKind.BF16 else (torch.float32, 1)
    return PackedLinear(kind, n, k, _interleave(_pad(weight.to(dtype)), pack), bias=padded_bias)


def quantize_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """w + 128 as uint8 [n, k] and scales [n] fp32 of `weight` [n, k]."""
    wide = weight.float()
    scales = wide.abs().amax(dim=1) / 127
    values = (wide / scales.clamp_min(1e-30)[:, None]).round_().clamp_(-127, 127)
    return (values + 128).to(torch.uint8), scales


def quantize_int4(weight: torch.Tensor, *, minimums: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """q in 0..15 as uint8 [n, k], fp16 scales [n, k / 32] and, when asked, fp16 minimums of `weight` [n, k].

    Symmetric: w = scale (q - 8), where the element of largest magnitude is -8 scales. Else w = scale q + minimum.
    """
    groups = weight.float().view(weight.shape[0], -1, QUANT_GROUP)
    if minimums:
        low = groups.amin(dim=2).half()
        scales = ((groups.amax(dim=2) - low.float()) / 15).half()
        offset = -low.float()[:, :, None]
    else:
        largest = groups.gather(2, groups.abs().argmax(dim=2, keepdim=True)).squeeze(2)
        low, scales = None, (largest / -8).half()
        offset = 8 * scales.float()[:, :, None]
    wide = scales.float()[:, :, None]
    values = torch.where(wide == 0, torch.zeros_like(groups), (groups + offset) / torch.where(wide == 0, 1.0, wide))
    return values.round_().clamp_(0, 15).to(torch.uint8).view_as(weight), scales, low


def pack_int4_values(
    values: torch.Tensor, scales: torch.Tensor, mins: torch.Tensor | None = None, bias: torch.Tensor | None = None
) -> PackedLinear:
    """Pack given q [n, k] uint8 in 0..15 with fp16 `scales` (and `mins`) [n, k / 32], as GGUF's Q4_0 and Q4_1 store."""
    n, k = values.shape
    padded = _pad(values)
    halves = padded.view(padded.shape[0], k // QUANT_GROUP, 2, QUANT_GROUP // 2)
    nibbles = (halves[:, :, 0] | (halves[:, :, 1] << 4)).reshape(padded.shape[0], k // 2)
    panels = [
        _pad(part.half()).view(-1, PANEL_COLUMNS, k // QUANT_GROUP).transpose(1, 2).contiguous()
        if part is not None
        else None
        for part in (scales, mins)
    ]
    padded_bias = _pad(bias.float()) if bias is not None else None
    return PackedLinear(NumberKind.INT4, n, k, _interleave(nibbles, 4), panels[0], panels[1], padded_bias)


def stack_experts(experts: Sequence[PackedLinear]) -> PackedLinear:
    """One packed matrix of several of one shape and kind, without bias; the plain ones can be dropped afterwards."""
    first = experts[0]
    if any((e.kind, e.n, e.k, e.bias) != (first.kind, first.n, first.k, None) for e in experts):
        raise ValueError("stack_experts: experts must share kind and shape, and have no bias")

    def joined(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        present = [part for part in parts if part is not None]
        return torch.stack(present) if len(present) == len(parts) else None

    data = torch.stack([e.data for e in experts])
    scales, mins = joined([e.scales for e in experts]), joined([e.mins for e in experts])
    return PackedLinear(first.kind, first.n, first.k, data, scales, mins, None, len(experts), stacked=True)


def _pad(rows: torch.Tensor) -> torch.Tensor:
    """Zero rows added up to whole panels."""
    extra = -rows.shape[0] % PANEL_COLUMNS
    return torch.cat((rows, rows.new_zeros(extra, *rows.shape[1:]))) if extra else rows


def _interleave(rows: torch.Tensor, pack: int) -> torch.Tensor:
    """[panels * 48, k] as [panels][k / pack][48][pack]."""
    return rows.view(-1, PANEL_COLUMNS, rows.shape[1] // pack, pack).transpose(1, 2).contiguous()
