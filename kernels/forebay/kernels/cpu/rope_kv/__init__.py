"""Queries, keys and values of a step: optional RMS norm of each head, rotary embedding, and the write into the pages.

Works in place on the fused projection's output. Queries come out turned and multiplied by the attention scale; keys and
values lie in the cache afterwards. Element i of a head turns with element i + rotary_dim / 2 (the layout of Hugging
Face checkpoints); dimensions from rotary_dim on are left as they are. Bit-invariant: each token is handled alone.
"""

from dataclasses import dataclass

import torch

from forebay.kernels.cpu.cache import KvCache
from forebay.kernels.cpu.op import TOKENS, Op, Shape, address
from forebay.kernels.cpu.records import OpKind, RopeKvRecord


@dataclass(frozen=True, slots=True)
class Rope:
    """Tables [positions, rotary_dim / 2] fp32 of cosines and sines."""

    cosine: torch.Tensor
    sine: torch.Tensor

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that turn."""
        return 2 * self.cosine.shape[1]


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMS norm over each query and key head: weights [head_dim] fp32."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float


def rope_kv(qkv: torch.Tensor, cache: KvCache, rope: Rope, scale: float, head_norm: HeadNorm | None = None) -> Op:
    """`qkv` [tokens, (heads + 2 kv_heads) * head_dim] fp32: query heads, then keys, then values.

    `scale` is the attention scale that queries are multiplied with. Positions of the step must lie inside the tables.
    """
    dim = cache.head_dim
    heads = qkv.shape[1] // dim - 2 * cache.kv_heads
    Shape("qkv", (heads + 2 * cache.kv_heads) * dim).check(qkv)
    if heads < 1 or heads % cache.kv_heads or rope.rotary_dim > dim or rope.cosine.shape != rope.sine.shape:
        raise ValueError(f"rope_kv: {heads} query heads for {cache.kv_heads}, rotary {rope.rotary_dim} of {dim}")
    tables = (
        Shape("cosine", rope.rotary_dim // 2).check(rope.cosine),
        Shape("sine", rope.rotary_dim // 2).check(rope.sine),
    )
    weights = (head_norm.query, head_norm.key) if head_norm else (None, None)
    if any(weight is not None and (weight.shape != (dim,) or weight.dtype != torch.float32) for weight in weights):
        raise ValueError(f"rope_kv: head norms are [{dim}] fp32")
    record = RopeKvRecord(
        op=TOKENS.header(OpKind.ROPE_KV),
        qkv=address(qkv),
        q_weight=address(weights[0]),
        k_weight=address(weights[1]),
        cosine=address(tables[0]),
        sine=address(tables[1]),
        cache=cache.record(),
        heads=heads,
        rotary_dim=rope.rotary_dim,
        scale=scale,
        eps=head_norm.eps if head_norm else 0.0,
    )
    return Op(record, (qkv, cache.pages, *tables, *weights), TOKENS.capacity(qkv))
