"""Paged causal attention one query and one head at a time in fp64, for tests."""

from collections.abc import Sequence

import torch

from forebay.kernels.paged_attention import Scoring


def paged_attention_reference(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: Sequence[int],
    start: int,
    scoring: Scoring,
    window_tokens: int = 0,
) -> torch.Tensor:
    """fp64 result for `query` [n, heads, head_dim] at positions `start`.. over KV pools; a window of 0 is none."""
    count, heads, head_dim = query.shape
    page_tokens, kv_heads = keys.shape[1], keys.shape[2]
    out = torch.zeros(count, heads, head_dim, dtype=torch.float64)
    for i in range(count):
        last = start + i
        first = max(0, last - window_tokens + 1) if window_tokens else 0
        places = [(table[p // page_tokens], p % page_tokens) for p in range(first, last + 1)]
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            seen_keys = torch.stack([keys[page, row, kv_head] for page, row in places]).double()
            seen_values = torch.stack([values[page, row, kv_head] for page, row in places]).double()
            out[i, head] = _attend(query[i, head].double(), seen_keys, seen_values, scoring, head)
    return out


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scoring: Scoring, head: int) -> torch.Tensor:
    """One query [head_dim] over keys and values [seen, head_dim], all fp64."""
    scores = keys @ query * scoring.scale
    if scoring.softcap:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    weights = scores.exp()
    sink = 0.0 if scoring.sinks is None else scoring.sinks[head].double().exp()
    result: torch.Tensor = weights @ values / (weights.sum() + sink)
    return result
