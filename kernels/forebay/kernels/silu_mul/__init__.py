"""Gated activation of the feed-forward block: silu(gate) * up (Shazeer, 2020).

Both halves come from one fused projection, so the input is [gate | up] along the last axis. Called once a layer.
"""

import torch
from torch.nn import functional


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, [n, width], from `gate_up` [n, 2 * width]; `ValueError` when the last axis is odd."""
    if gate_up.shape[-1] % 2:
        raise ValueError(f"silu_mul: last axis of {list(gate_up.shape)} cannot be halved")
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
