"""Root-mean-square normalisation over the last axis.

y = x / sqrt(mean(x^2) + eps) * weight, with the mean in fp32 whatever the storage type (Zhang and Sennrich, 2019).
Called by the models, two times a layer.
"""

import torch
from torch.nn import functional


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalised copy of `x` [..., width] scaled by `weight` [width]; both of one dtype. `ValueError` on a mismatch."""
    if x.shape[-1:] != weight.shape or x.dtype != weight.dtype:
        raise ValueError(f"rms_norm: weight {weight.dtype}{list(weight.shape)} for input {x.dtype}{list(x.shape)}")
    return functional.rms_norm(x, weight.shape, weight, eps)
