"""A tape: ops that one call of the library runs in order inside one parallel region, with a barrier after each.

Shapes and pointers are fixed when the tape is built; a run brings the step's tokens, rows and page tables. The same ops
run alone on a tape of one. A tape is not reentrant: one run at a time. The interpreter lock is free during a run.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.kernels.cpu.library import CpuLibrary
from forebay.kernels.cpu.op import Op
from forebay.kernels.cpu.records import MAX_GROUPS, OpKind, StepRecord

NO_TOKENS = np.zeros(0, dtype=np.int64)
BLOCK_BYTES = 16
CACHE_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Step:
    """What a run works on. Row r has `counts[r]` consecutive tokens from `starts[r]`; all int64 but the tables.

    `tables[g]` is int32 [rows, width]: page ids of layer group g. `sampled` are flat token indices.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    tables: tuple[NDArray[np.int32], ...]
    sampled: NDArray[np.int64] = field(default_factory=lambda: NO_TOKENS)


class Tape:
    """Ops with their working memory. `max_tokens` bounds the tokens of a step; `threads` defaults to torch's.

    `ValueError` when an op's buffers have rows for fewer tokens. Sampled rows are bounded by the buffers themselves.
    """

    def __init__(self, library: CpuLibrary, ops: Sequence[Op], max_tokens: int, threads: int | None = None) -> None:
        self._library = library
        self._ops = tuple(ops)
        self._max_tokens = max_tokens
        self._max_sampled = min((op.capacity for op in ops if op.sampled), default=max_tokens)
        if short := [op for op in ops if not op.sampled and op.capacity < max_tokens]:
            kind = OpKind(short[0].record.op.kind).name
            raise ValueError(f"a buffer of {kind} has rows for {short[0].capacity} tokens, the tape for {max_tokens}")
        self._threads = threads or torch.get_num_threads()
        self._pointers = (ctypes.c_void_p * len(ops))(*[ctypes.addressof(op.record) for op in ops])
        # A multiple of a cache line, so that threads do not share one.
        self._scratch_bytes = _aligned(max((op.scratch_bytes for op in ops), default=0))
        self._scratch = torch.zeros(self._threads * self._scratch_bytes + CACHE_LINE_BYTES, dtype=torch.uint8)
        self._token_rows = np.zeros(max_tokens, dtype=np.int32)
        self._counters = np.zeros((len(ops) * self._threads + 1) * CACHE_LINE_BYTES, dtype=np.uint8)
        self._blocks = np.zeros((max_tokens, BLOCK_BYTES), dtype=np.uint8)

    def run(self, step: Step) -> None:
        """Run all ops; outputs are in the buffers that the ops were built with. `ValueError` for a malformed step."""
        record = self._record(step)
        self._library.handle.forebay_run(self._pointers, len(self._ops), ctypes.byref(record))

    def _record(self, step: Step) -> StepRecord:
        _check(step, self._max_tokens)
        if len(step.sampled) > self._max_sampled or (len(step.sampled) and step.sampled.max() >= len(step.tokens)):
            raise ValueError(
                f"step: {len(step.sampled)} sampled of {len(step.tokens)} tokens, at most {self._max_sampled}"
            )
        record = StepRecord(
            tokens_count=len(step.tokens),
            rows_count=len(step.starts),
            sampled_count=len(step.sampled),
            tokens=step.tokens.ctypes.data,
            positions=step.positions.ctypes.data,
            starts=step.starts.ctypes.data,
            counts=step.counts.ctypes.data,
            sampled=step.sampled.ctypes.data,
            token_rows=self._token_rows.ctypes.data,
            blocks=self._blocks.ctypes.data,
            scratch=_aligned(self._scratch.data_ptr()),
            scratch_bytes=self._scratch_bytes,
            counters=_aligned(self._counters.ctypes.data),
            threads=self._threads,
            bf16_instructions=self._library.bf16_instructions,
        )
        for group, table in enumerate(step.tables):
            record.tables[group] = table.ctypes.data
            record.table_widths[group] = table.shape[1]
        return record


def _aligned(value: int) -> int:
    """The next multiple of a cache line."""
    return -(-value // CACHE_LINE_BYTES) * CACHE_LINE_BYTES


def _check(step: Step, max_tokens: int) -> None:
    for name in ("tokens", "positions", "starts", "counts", "sampled"):
        array = getattr(step, name)
        if array.dtype != np.int64 or not array.flags.c_contiguous or array.ndim != 1:
            raise ValueError(f"step: {name} is {array.dtype}{list(array.shape)}, expected a contiguous int64 vector")
    tokens, rows = len(step.tokens), len(step.starts)
    if tokens > max_tokens or len(step.positions) != tokens:
        raise ValueError(f"step: {tokens} tokens and {len(step.positions)} positions, the tape has {max_tokens}")
    if len(step.counts) != rows or (rows and int((step.starts + step.counts).max()) > tokens):
        raise ValueError(f"step: {rows} starts and {len(step.counts)} counts do not fit {tokens} tokens")
    _check_tables(step.tables, rows)


def _check_tables(tables: tuple[NDArray[np.int32], ...], rows: int) -> None:
    if len(tables) > MAX_GROUPS:
        raise ValueError(f"step: {len(tables)} page tables, the library takes {MAX_GROUPS}")
    for table in tables:
        if table.dtype != np.int32 or not table.flags.c_contiguous or table.ndim != 2 or len(table) != rows:
            raise ValueError(f"step: a page table is {table.dtype}{list(table.shape)}, expected int32 [rows, width]")
