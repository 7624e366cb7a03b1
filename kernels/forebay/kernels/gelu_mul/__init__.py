"""Gated activation of Gemma's feed-forward block: gelu(gate) * up, with the tanh form of gelu.

Both halves come from one fused projection, so the input is [gate | up] along the last axis. Called once a layer.
"""

import torch
from torch.nn import functional


def gelu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up, [n, width], from `gate_up` [n, 2 * width]; `ValueError` when the last axis is odd."""
    if gate_up.shape[-1] % 2:
        raise ValueError(f"gelu_mul: last axis of {list(gate_up.shape)} cannot be halved")
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh").mul_(up)
