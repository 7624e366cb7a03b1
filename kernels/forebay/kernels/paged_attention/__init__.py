"""Causal attention over a paged KV pool, for decode rows and for prefill chunks.

A pool is [pages, page_tokens, kv_heads, head_dim], one for keys and one for values; position p of a sequence lies in
page `table[p // page_tokens]`, row p % page_tokens. Queries share KV heads in groups. The group is an axis of the query
and never a copy of keys (`enable_gqa` copies, and costs four times the time on CPU). Stale rows of a page are masked,
so a pool must start finite (zeros).
"""

import torch
from torch.nn import functional


def write_pages(pool: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Store `rows` [n, kv_heads, head_dim] at `slots` [n] (page * page_tokens + row) of `pool`, in the pool's dtype."""
    if rows.shape[0] != slots.shape[0] or rows.shape[1:] != pool.shape[2:]:
        raise ValueError(f"write_pages: {list(rows.shape)} rows, {list(slots.shape)} slots, pool {list(pool.shape)}")
    pool.view(-1, *pool.shape[2:]).index_copy_(0, slots, rows.to(pool.dtype))


def gather_pages(pool: torch.Tensor, pages: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Rows of `pages` [m] in order, [m * page_tokens, kv_heads, head_dim]; written into `out` [m, ...] when given."""
    return torch.index_select(pool, 0, pages, out=out).view(-1, *pool.shape[2:])


def decode_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """One query token for each of b sequences.

    `query` [b, heads, head_dim], `keys` and `values` [b, t, kv_heads, head_dim], `bias` [b, 1, 1, t] with 0 for a
    position that is seen and -inf for one that is not. Returns [b, heads, head_dim].
    """
    rows, heads, head_dim = query.shape
    kv_heads = keys.shape[2]
    if heads % kv_heads or keys.shape != values.shape or bias.shape[-1] != keys.shape[1]:
        raise ValueError(f"decode_attention: query {list(query.shape)}, keys {list(keys.shape)}")
    grouped = query.view(rows, kv_heads, heads // kv_heads, head_dim)
    mixed = functional.scaled_dot_product_attention(
        grouped, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=bias
    )
    return mixed.reshape(rows, heads, head_dim)


def prefill_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """A chunk of n consecutive query tokens of one sequence.

    `query` [n, heads, head_dim]; `keys` and `values` [t, kv_heads, head_dim], position 0 first; `bias` [n, t], or None
    when the chunk starts at position 0 (n == t, plain causal). Returns [n, heads, head_dim].
    """
    count, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    if heads % kv_heads or keys.shape != values.shape or (bias is None and keys.shape[0] != count):
        raise ValueError(f"prefill_attention: query {list(query.shape)}, keys {list(keys.shape)}")
    group = heads // kv_heads
    grouped = query.view(count, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    shape = (kv_heads, group, keys.shape[0], head_dim)
    mixed = functional.scaled_dot_product_attention(
        grouped,
        keys.transpose(0, 1)[:, None].expand(shape),
        values.transpose(0, 1)[:, None].expand(shape),
        attn_mask=bias,
        is_causal=bias is None,
    )
    return mixed.permute(2, 0, 1, 3).reshape(count, heads, head_dim)
