"""Linear layers on dequantized weights in torch, and the inverse of the packing, for tests."""

import torch

from forebay.kernels.cpu.linear.packing import PackedLinear
from forebay.kernels.cpu.records import PANEL_COLUMNS, QUANT_GROUP, NumberKind


def unpack(weight: PackedLinear) -> torch.Tensor:
    """fp64 [n, k] that a packed matrix (not stacked) stands for."""
    data = weight.data.transpose(1, 2).reshape(weight.data.shape[0] * PANEL_COLUMNS, -1)[: weight.n]
    if weight.kind == NumberKind.INT8 and weight.scales is not None:
        return (data.double() - 128) * weight.scales.double()[: weight.n, None]
    if weight.kind != NumberKind.INT4 or weight.scales is None:
        return data.double()
    groups = data.view(weight.n, weight.k // QUANT_GROUP, QUANT_GROUP // 2)
    q = torch.cat((groups & 15, groups >> 4), dim=2).double()
    scales = _columns(weight.scales, weight.n)
    if weight.mins is None:
        return ((q - 8) * scales).view(weight.n, weight.k)
    return (q * scales + _columns(weight.mins, weight.n)).view(weight.n, weight.k)


def linear_reference(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
    """fp64 [rows, n] for the activation's values `x` [rows, k]."""
    product = x.double() @ unpack(weight).T
    return product if weight.bias is None else product + weight.bias[: weight.n].double()


def _columns(parts: torch.Tensor, n: int) -> torch.Tensor:
    return parts.double().transpose(1, 2).reshape(-1, parts.shape[1])[:n, :, None]
