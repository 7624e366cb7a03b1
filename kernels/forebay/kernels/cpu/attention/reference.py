"""Causal attention one query at a time in fp64, for tests."""

import torch


def attention_reference(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, position: int, window: int = 0, softcap: float = 0.0
) -> torch.Tensor:
    """fp64 [heads, dim] for one scaled `query` [heads, dim] at `position`; keys, values [tokens, kv_heads, dim]."""
    first = max(0, position - window + 1) if window else 0
    group = query.shape[0] // keys.shape[1]
    seen_keys = keys[first : position + 1].double().repeat_interleave(group, dim=1)
    seen_values = values[first : position + 1].double().repeat_interleave(group, dim=1)
    scores = torch.einsum("hd,thd->ht", query.double(), seen_keys)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    return torch.einsum("ht,thd->hd", scores.softmax(dim=-1), seen_values)
