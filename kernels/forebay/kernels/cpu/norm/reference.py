"""The formulas of the norm routine in torch, for tests."""

import torch


def norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """fp64 result for `x` [rows, width] and `weight` [width]."""
    wide = x.double()
    return wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight.double()
