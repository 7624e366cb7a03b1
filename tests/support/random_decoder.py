"""A decoder of random weights in the shapes of a small Llama, as one tape of the CPU library, for benchmarks and tests.

Weights are different in every layer, so that a step reads as much memory as a real model's.
"""

from dataclasses import dataclass

import numpy as np
import torch

from forebay.kernels import cpu


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes of a Llama-like decoder; the defaults are SmolLM2-135M's."""

    layers: int = 30
    hidden: int = 576
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    inner: int = 1536
    vocabulary: int = 49152
    positions: int = 2048

    @property
    def qkv(self) -> int:
        """Width of the fused projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True)
class RandomDecoder:
    """The tape with its logits buffer and caches, for steps of up to `max_tokens`, all of them sampled if wanted."""

    shape: DecoderShape
    tape: cpu.Tape
    ops: tuple[cpu.Op, ...]
    logits: torch.Tensor
    caches: tuple[cpu.KvCache, ...]
    page_tokens: int

    @staticmethod
    def plain_step(tokens: int) -> cpu.Step:
        """A step of one row without pages, for ops that know rows only."""
        zeros = np.zeros(tokens, dtype=np.int64)
        return cpu.Step(zeros, zeros, zeros[:0], zeros[:0], ())

    def step(self, contexts: list[int], counts: list[int], seed: int = 0) -> cpu.Step:
        """Rows of which the last `counts[r]` tokens of `contexts[r]` are in this step; each row's last is sampled."""
        generator = np.random.default_rng(seed)
        ends = np.cumsum(counts)
        width = -(-max(contexts) // self.page_tokens)
        table = np.arange(len(contexts) * width, dtype=np.int32).reshape(len(contexts), width)
        positions = [np.arange(context - count, context) for context, count in zip(contexts, counts, strict=True)]
        return cpu.Step(
            tokens=generator.integers(0, self.shape.vocabulary, int(ends[-1])),
            positions=np.concatenate(positions).astype(np.int64),
            starts=(ends - counts).astype(np.int64),
            counts=np.asarray(counts, dtype=np.int64),
            tables=(table,),
            sampled=(ends - 1).astype(np.int64),
        )


def rotary_tables(positions: int, head_dim: int, base: float = 1e5) -> cpu.Rope:
    """Tables of the usual frequencies."""
    frequencies = base ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
    return cpu.Rope(angles.cos(), angles.sin())


def build_decoder(
    library: cpu.CpuLibrary,
    kind: cpu.NumberKind,
    *,
    shape: DecoderShape | None = None,
    pages: int = 64,
    page_tokens: int = 16,
    max_tokens: int = 512,
    max_sampled: int = 32,
    threads: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> RandomDecoder:
    """Random weights packed as `kind`, caches filled with random finite numbers."""
    s = shape or DecoderShape()
    torch.manual_seed(0)
    need = cpu.activation_kind(kind).allocate

    def weight(n: int, k: int) -> cpu.PackedLinear:
        return cpu.pack_linear(torch.randn(n, k) * k**-0.5, kind)

    x, sampled = torch.zeros(max_tokens, s.hidden), torch.zeros(max_sampled, s.hidden)
    qkv, mixed = torch.zeros(max_tokens, s.qkv), torch.zeros(max_tokens, s.heads * s.head_dim)
    gate_up, logits = torch.zeros(max_tokens, 2 * s.inner), torch.zeros(max_sampled, s.vocabulary)
    hidden, joined = (
        cpu.allocate_activation(need, max_tokens, s.hidden),
        cpu.allocate_activation(need, max_tokens, s.heads * s.head_dim),
    )
    inner, last = (
        cpu.allocate_activation(need, max_tokens, s.inner),
        cpu.allocate_activation(need, max_sampled, s.hidden),
    )
    rope, ones = rotary_tables(s.positions, s.head_dim), torch.ones(s.hidden)
    caches = []
    ops = [cpu.embed((torch.randn(s.vocabulary, s.hidden) * 0.5).bfloat16(), x)]
    for _ in range(s.layers):
        cache = cpu.allocate_cache(pages, s.kv_heads, page_tokens, s.head_dim, dtype)
        cache.pages.normal_()
        caches.append(cache)
        ops += [
            cpu.norm(x, ones, 1e-5, hidden),
            cpu.linear(hidden, weight(s.qkv, s.hidden), qkv),
            cpu.rope_kv(qkv, cache, rope, s.head_dim**-0.5),
            cpu.attention(qkv, mixed, cache),
            cpu.convert(mixed, joined),
            cpu.linear(joined, weight(s.hidden, s.heads * s.head_dim), x, accumulate=True),
            cpu.norm(x, ones, 1e-5, hidden),
            cpu.linear(hidden, weight(2 * s.inner, s.hidden), gate_up),
            cpu.gate(gate_up, inner, cpu.GateFunction.SILU),
            cpu.linear(inner, weight(s.hidden, s.inner), x, accumulate=True),
        ]
    ops += [
        cpu.gather(x, sampled),
        cpu.norm(sampled, ones, 1e-5, last, cpu.SAMPLED),
        cpu.linear(last, weight(s.vocabulary, s.hidden), logits, select=cpu.SAMPLED),
    ]
    tape = cpu.Tape(library, ops, max_tokens, threads)
    return RandomDecoder(s, tape, tuple(ops), logits, tuple(caches), page_tokens)
