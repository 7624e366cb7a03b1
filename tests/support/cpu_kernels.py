"""What the tests of the C library share: the variants that this machine can run, and steps of simple shape."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from forebay.kernels import cpu

VARIANTS = (("v4", True), ("v4", False), ("v3", False))
VARIANT_NAMES = ("v4-bf16", "v4-widen", "v3")


def library(variant: tuple[str, bool]) -> cpu.CpuLibrary:
    """The variant's library; the test is skipped where this CPU or installation has none."""
    loaded = cpu.load(variant[0], bf16_instructions=variant[1])
    if isinstance(loaded, cpu.Unavailable):
        pytest.skip(loaded.reason)
    if variant[1] and not loaded.bf16_instructions:
        pytest.skip("the CPU has no avx512_bf16")
    return loaded


def plain_step(tokens: int, sampled: Sequence[int] = ()) -> cpu.Step:
    """A step for ops that know rows only."""
    none = np.zeros(0, dtype=np.int64)
    zeros = np.zeros(tokens, dtype=np.int64)
    return cpu.Step(zeros, zeros, none, none, (), np.asarray(sampled, dtype=np.int64))


def run(library: cpu.CpuLibrary, ops: Sequence[cpu.Op], step: cpu.Step, threads: int = 2) -> None:
    """Run ops on a tape of their own."""
    cpu.Tape(library, ops, len(step.tokens), threads).run(step)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a step: the last `counts[r]` tokens of `contexts[r]` are in it; pages are shuffled."""

    contexts: tuple[int, ...]
    counts: tuple[int, ...]

    def step(self, page_tokens: int, pages: int) -> cpu.Step:
        """Row r's pages come from a fixed shuffle of `pages`."""
        width = -(-max(self.contexts) // page_tokens)
        order = np.random.default_rng(7).permutation(pages)[: len(self.contexts) * width]
        ends = np.cumsum(self.counts)
        spans = [np.arange(end - count, end) for end, count in zip(self.contexts, self.counts, strict=True)]
        positions = np.concatenate(spans).astype(np.int64)
        return cpu.Step(
            tokens=np.zeros(len(positions), dtype=np.int64),
            positions=positions,
            starts=(ends - np.asarray(self.counts)).astype(np.int64),
            counts=np.asarray(self.counts, dtype=np.int64),
            tables=(order.reshape(len(self.contexts), width).astype(np.int32),),
        )

    def row_of(self, token: int) -> int:
        """The row that a flat token belongs to."""
        return int(np.searchsorted(np.cumsum(self.counts), token, side="right"))


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is wanted."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-30))
