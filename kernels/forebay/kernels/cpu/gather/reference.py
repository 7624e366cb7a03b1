"""Row selection in torch, for tests."""

import torch


def gather_reference(x: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
    """[sampled, width]."""
    return x[sampled]
