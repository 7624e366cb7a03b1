"""The formula of `silu_mul` in fp64, for tests."""

import torch


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """fp64 result for `gate_up` [n, 2 * width]."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up
