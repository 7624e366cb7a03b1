"""Causal attention over a paged KV pool, for decode rows and for prefill chunks.

A pool is [pages, page_tokens, kv_heads, head_dim], one for keys and one for values; position p of a sequence lies in
page `table[p // page_tokens]`, row p % page_tokens. Queries share KV heads in groups. The group is an axis of the query
and never a copy of keys (`enable_gqa` copies, and costs four times the time on CPU). Stale rows of a page are masked,
so a pool must start finite (zeros). Windows are masks too: the caller hides what a position does not see.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a score is made of a query and a key: their product times `scale`, then softcap * tanh(. / softcap).

    A `softcap` of 0 is none. `sinks` [heads] are scores of a key that every query sees and that has no value.
    """

    scale: float
    softcap: float = 0.0
    sinks: torch.Tensor | None = None


def write_pages(pool: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Store `rows` [n, kv_heads, head_dim] at `slots` [n] (page * page_tokens + row) of `pool`, in the pool's dtype."""
    if rows.shape[0] != slots.shape[0] or rows.shape[1:] != pool.shape[2:]:
        raise ValueError(f"write_pages: {list(rows.shape)} rows, {list(slots.shape)} slots, pool {list(pool.shape)}")
    pool.view(-1, *pool.shape[2:]).index_copy_(0, slots, rows.to(pool.dtype))


def gather_pages(pool: torch.Tensor, pages: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Rows of `pages` [m] in order, [m * page_tokens, kv_heads, head_dim]; written into `out` [m, ...] when given."""
    return torch.index_select(pool, 0, pages, out=out).view(-1, *pool.shape[2:])


def decode_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor, scoring: Scoring
) -> torch.Tensor:
    """One query token for each of b sequences.

    `query` [b, heads, head_dim], `keys` and `values` [b, t, kv_heads, head_dim], `bias` [b, 1, 1, t] with 0 for a
    position that is seen and -inf for one that is not. Returns [b, heads, head_dim].
    """
    rows, heads, head_dim = query.shape
    kv_heads = keys.shape[2]
    if heads % kv_heads or keys.shape != values.shape or bias.shape[-1] != keys.shape[1]:
        raise ValueError(f"decode_attention: query {list(query.shape)}, keys {list(keys.shape)}")
    grouped = query.view(rows, kv_heads, heads // kv_heads, head_dim)
    sinks = None if scoring.sinks is None else scoring.sinks.view(1, kv_heads, heads // kv_heads, 1)
    mixed = _mix(grouped, keys.transpose(1, 2), values.transpose(1, 2), bias, scoring, sinks)
    return mixed.reshape(rows, heads, head_dim)


def prefill_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None, scoring: Scoring
) -> torch.Tensor:
    """A chunk of n consecutive query tokens of one sequence.

    `query` [n, heads, head_dim]; `keys` and `values` [t, kv_heads, head_dim]; `bias` [n, t] says what is seen, or is
    None when the chunk starts at position 0 and sees all before it (n == t, plain causal).
    Returns [n, heads, head_dim].
    """
    count, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    if heads % kv_heads or keys.shape != values.shape or (bias is None and keys.shape[0] != count):
        raise ValueError(f"prefill_attention: query {list(query.shape)}, keys {list(keys.shape)}")
    group = heads // kv_heads
    grouped = query.view(count, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    shape = (kv_heads, group, keys.shape[0], head_dim)
    spread = (keys.transpose(0, 1)[:, None].expand(shape), values.transpose(0, 1)[:, None].expand(shape))
    sinks = None if scoring.sinks is None else scoring.sinks.view(kv_heads, group, 1, 1)
    mixed = _mix(grouped, *spread, bias, scoring, sinks)
    return mixed.permute(2, 0, 1, 3).reshape(count, heads, head_dim)


def _mix(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    scoring: Scoring,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    if scoring.softcap == 0 and sinks is None:
        return functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=bias, is_causal=bias is None, scale=scoring.scale
        )
    scores = (query @ keys.transpose(-1, -2)).float() * scoring.scale
    if scoring.softcap:
        scores = (scores / scoring.softcap).tanh_() * scoring.softcap
    if bias is None:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu_(1)
        scores = scores.masked_fill_(ahead, float("-inf"))
    else:
        scores = scores + bias.float()
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().expand(*scores.shape[:-1], 1)), dim=-1)
    weights = scores.softmax(dim=-1)[..., : keys.shape[-2]]
    return weights.to(values.dtype) @ values
