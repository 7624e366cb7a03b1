"""The formula of `gelu_mul` in fp64, for tests."""

import math

import torch


def gelu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """fp64 result for `gate_up` [n, 2 * width]."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return gate * (1 + torch.tanh(inner)) / 2 * up
