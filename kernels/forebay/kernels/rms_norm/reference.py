"""The formula of `rms_norm` in fp64, for tests."""

import torch


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """fp64 result for `x` [..., width] and `weight` [width]."""
    wide = x.double()
    scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    return wide * scale * weight.double()
