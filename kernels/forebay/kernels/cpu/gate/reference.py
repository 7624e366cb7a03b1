"""The gated activations in torch, for tests."""

import torch
from torch.nn import functional


def gate_reference(gate_up: torch.Tensor, gelu_tanh: bool) -> torch.Tensor:
    """fp64 result for `gate_up` [rows, 2 * width]."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (functional.gelu(gate, approximate="tanh") if gelu_tanh else functional.silu(gate)) * up
