"""Rotary position embedding in the half-split layout (Su et al., 2021, as stored by Hugging Face checkpoints).

Element i of a head turns with element i + head_dim / 2. The tables carry the sign of the sine, so one multiply and one
fused multiply-add over a rolled copy are enough. Tables are made for the positions of a step, once for all layers: a
table of every position would cost a long-context model more memory than its weights.
"""

import torch


def rope_tables(
    frequencies: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and signed sine, each [n, 1, head_dim], at `positions` [n] for `frequencies` [head_dim / 2].

    Frequencies are radians a token. Angles are computed in fp32 and rounded to `dtype` last.
    """
    angles = positions[:, None].float() * frequencies.float()[None, :]
    cosine, sine = angles.cos(), angles.sin()
    return (
        torch.cat((cosine, cosine), dim=-1).to(dtype).unsqueeze(1),
        torch.cat((-sine, sine), dim=-1).to(dtype).unsqueeze(1),
    )


def rope(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """`x` [n, heads, head_dim] turned by the table rows `cosine`, `sine` [n, 1, head_dim] of its n positions."""
    if x.shape[-1] != cosine.shape[-1] or x.shape[0] != cosine.shape[0] or cosine.shape != sine.shape:
        raise ValueError(f"rope: tables {list(cosine.shape)}, {list(sine.shape)} for input {list(x.shape)}")
    return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, dims=-1), sine)
