"""Paged causal attention one query and one head at a time in fp64, for tests."""

from collections.abc import Sequence

import torch


def paged_attention_reference(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: Sequence[int], start: int
) -> torch.Tensor:
    """fp64 result for `query` [n, heads, head_dim] at positions `start`.. over KV pools."""
    count, heads, head_dim = query.shape
    page_tokens, kv_heads = keys.shape[1], keys.shape[2]
    out = torch.zeros(count, heads, head_dim, dtype=torch.float64)
    for i in range(count):
        places = [(table[p // page_tokens], p % page_tokens) for p in range(start + i + 1)]
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            seen_keys = torch.stack([keys[page, row, kv_head] for page, row in places]).double()
            seen_values = torch.stack([values[page, row, kv_head] for page, row in places]).double()
            scores = seen_keys @ query[i, head].double() / head_dim**0.5
            out[i, head] = scores.softmax(dim=0) @ seen_values
    return out
