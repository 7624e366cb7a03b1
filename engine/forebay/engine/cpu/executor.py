"""The executor on the C library: one call a step.

Everything is allocated when it is built: packed weights, KV pools, working buffers for the largest step. A step turns
its inputs into a header of pointers and runs the tape; the logits buffer grows when more rows are sampled than ever
before. Logits of a row are bit-equal whatever its batch mates and chunks are, because every routine of the library is.
"""

from collections.abc import Sequence

import numpy as np
import torch

from forebay.contract.errors import InvalidSpec
from forebay.engine.cpu.buffers import Buffers
from forebay.engine.cpu.compile import DecoderCompiler
from forebay.engine.cpu.pack import DTYPES
from forebay.engine.cpu.pools import KvPools
from forebay.engine.models.decoder import DecoderSpec
from forebay.engine.runner.compute import Compute
from forebay.engine.runner.executor import ExecutorSizes, StepInputs
from forebay.kernels.cpu import (
    SAMPLED,
    CpuLibrary,
    NumberKind,
    Op,
    Step,
    Tape,
    Unavailable,
    activation_kind,
    linear,
    load,
)


class CpuExecutor:
    """A decoder compiled to tapes, behind the `Executor` protocol."""

    def __init__(self, spec: DecoderSpec, compute: Compute, sizes: ExecutorSizes) -> None:
        library = load()
        if isinstance(library, Unavailable):
            raise InvalidSpec(f"kernels cpu cannot serve here: {library.reason}", field="kernels")
        shape = spec.shape
        self.vocab = shape.vocab
        self._softcap = shape.logit_softcap
        self._library: CpuLibrary = library
        self._sizes = sizes
        self._pools = KvPools(shape, sizes, DTYPES[compute.kv])
        buffers = Buffers(shape, sizes.max_tokens)
        positions = shape.max_positions
        if shape.groups[0].window_tokens == 0:
            positions = min(positions, sizes.pages[0] * sizes.page_tokens)
        compiler = DecoderCompiler(spec, compute, buffers, self._pools, positions)
        ends = compiler.ends()
        body = [compiler.lookup(ends), *compiler.layers(sizes.threads)]
        self._head = ends.head
        self._last = buffers.activation("last", activation_kind(ends.head.kind).allocate, shape.hidden)
        self._hidden = buffers.activation("last", NumberKind.FP32, shape.hidden)
        self._to_logits = [*body, *compiler.last_rows(ends, self._last)]
        self._hidden_tape = self._tape([*body, *compiler.last_rows(ends, self._hidden)])
        self._grow(sizes.max_rows)

    def copy_rows(self, group: int, copies: Sequence[tuple[int, int, int]]) -> None:
        """See `Executor.copy_rows`; whole pages are copied."""
        self._pools.copy_pages(group, copies)

    def logits(self, inputs: StepInputs) -> torch.Tensor:
        """See `Executor.logits`."""
        count = len(inputs.sampled)
        if count > len(self._logits):
            self._grow(count)
        self._logits_tape.run(_step(inputs))
        found = self._logits[:count]
        return torch.tanh_(found.div_(self._softcap)).mul_(self._softcap) if self._softcap else found

    def hidden(self, inputs: StepInputs) -> torch.Tensor:
        """See `Executor.hidden`."""
        self._hidden_tape.run(_step(inputs))
        return self._hidden.data[: len(inputs.sampled)]

    def _grow(self, rows: int) -> None:
        self._logits = torch.zeros(rows, self.vocab)
        head = linear(self._last, self._head, self._logits, select=SAMPLED)
        self._logits_tape = self._tape([*self._to_logits, head])

    def _tape(self, ops: Sequence[Op]) -> Tape:
        return Tape(self._library, ops, self._sizes.max_tokens, self._sizes.threads)


def _step(inputs: StepInputs) -> Step:
    """The library counts a row's start in flat tokens, the plan in positions."""
    return Step(
        tokens=np.ascontiguousarray(inputs.tokens),
        positions=np.ascontiguousarray(inputs.positions),
        starts=np.cumsum(inputs.counts) - inputs.counts,
        counts=np.ascontiguousarray(inputs.counts),
        tables=tuple(np.ascontiguousarray(table) for table in inputs.tables),
        sampled=np.ascontiguousarray(inputs.sampled),
    )
