"""Head norm and rotary embedding in torch, for tests."""

import torch


def rope_reference(
    heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """fp64 heads [tokens, heads, dim] after norm and turn; tables [tokens, rotary_dim / 2] of the tokens' positions."""
    x = heads.double()
    if weight is not None:
        x = x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight.double()
    half = cosine.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    c, s = cosine.double()[:, None], sine.double()[:, None]
    return torch.cat((first * c - second * s, second * c + first * s, rest), dim=-1)
