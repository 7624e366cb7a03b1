"""Rotary embedding as complex multiplication in fp64, for tests."""

import torch


def rope_reference(x: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """fp64 result for `x` [n, heads, head_dim] at `positions` [n], `frequencies` [head_dim / 2]."""
    first, second = x.double().chunk(2, dim=-1)
    angles = positions.double()[:, None, None] * frequencies.double()
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1)
