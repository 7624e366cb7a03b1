"""Paged causal attention for decode rows and prefill chunks of one step.

Query token at position p sees positions 0..p, or p - window + 1..p, of its row. Tiles of 64 absolute positions are
visited in order with a running maximum; sums are fp32. With fp32 pages products are fp32; with bf16 pages queries and
weights are rounded to bf16 first, on every CPU. Bit-invariant: a query's bits depend on its own query, keys
and values alone, neither on batch mates nor on how a prompt was cut into chunks, nor on whether it came as a decode row
or inside a chunk; so speculation verifies with the same bits that plain decoding computes. (The sign of an exact zero
may differ.) Any group of query heads to a kv head, head_dim 16..512, any window.
"""

import torch

from forebay.kernels.cpu.cache import KvCache
from forebay.kernels.cpu.op import TOKENS, Op, Shape, address
from forebay.kernels.cpu.records import ATTENTION_BLOCK_TOKENS, ATTENTION_TILE_TOKENS, AttentionRecord, OpKind


def attention(qkv: torch.Tensor, out: torch.Tensor, cache: KvCache, window: int = 0, softcap: float = 0.0) -> Op:
    """`out` [tokens, heads * head_dim] fp32 from `qkv` [tokens, (heads + 2 kv_heads) * head_dim] as `rope_kv` left it.

    `window` in tokens, 0 = all; `softcap` > 0 bounds scores to softcap * tanh(score / softcap).
    """
    dim = cache.head_dim
    heads = out.shape[1] // dim
    Shape("out", heads * dim).check(out)
    Shape("qkv", (heads + 2 * cache.kv_heads) * dim).check(qkv)
    if heads < 1 or heads % cache.kv_heads or window < 0:
        raise ValueError(f"attention: {heads} query heads for {cache.kv_heads} kv heads, window {window}")
    record = AttentionRecord(
        op=TOKENS.header(OpKind.ATTENTION),
        qkv=address(qkv),
        out=address(out),
        cache=cache.record(),
        heads=heads,
        window=window,
        softcap=softcap,
    )
    queries = ATTENTION_BLOCK_TOKENS * heads // cache.kv_heads
    scratch_bytes = 4 * queries * (2 * dim + 2 * ATTENTION_TILE_TOKENS + 2)
    return Op(record, (qkv, out, cache.pages), TOKENS.capacity(qkv, out), scratch_bytes=scratch_bytes)
