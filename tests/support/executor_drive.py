"""Drives any executor as a scheduler would, without policy: a test says which sequence advances by how many tokens.

`ExecutorDrive` keeps the tokens, positions and scattered pages of its sequences for every layer group and returns the
logits of every computed token, copied. Table entries behind a window point to page 0, which no sequence owns: an
executor that reads them gets other logits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from forebay.engine.runner.executor import Executor, StepInputs


@dataclass
class DrivenSequence:
    """Tokens of one sequence, how many are in KV, and its pages of each group."""

    tokens: list[int]
    computed: int = 0
    pages: list[list[int]] = field(default_factory=list)


class ExecutorDrive:
    """Sequences by name over one executor; `windows[g]` is group g's window, 0 for full attention."""

    def __init__(
        self, executor: Executor, pages: Sequence[int], page_tokens: int, windows: Sequence[int], seed: int = 5
    ) -> None:
        self.executor = executor
        self.page_tokens = page_tokens
        self.windows = tuple(windows)
        self.sequences: dict[int, DrivenSequence] = {}
        random = np.random.default_rng(seed)
        # Page 0 of each group stays out of use: freed entries point to it.
        self._free = [(1 + random.permutation(count - 1)).tolist() for count in pages]

    def add(self, name: int, tokens: Sequence[int]) -> None:
        """A new sequence with all its tokens."""
        self.sequences[name] = DrivenSequence(list(tokens), pages=[[] for _ in self._free])

    def remove(self, name: int) -> None:
        """Free the pages of a sequence; shared pages must not be in use any more."""
        for free, pages in zip(self._free, self.sequences.pop(name).pages, strict=True):
            free += [page for page in pages if page]

    def share_prefix(self, name: int, source: int, tokens: int) -> None:
        """Start `name` on `tokens` cached tokens of `source`: whole pages are shared, the rest is copied."""
        target, origin = self.sequences[name], self.sequences[source]
        whole, rest = divmod(tokens, self.page_tokens)
        for group, pages in enumerate(origin.pages):
            target.pages[group] = pages[:whole]
            if rest:
                page = self._free[group].pop()
                target.pages[group].append(page)
                self.executor.copy_rows(group, [(pages[whole], page, rest)])
        target.computed = tokens

    def advance(self, counts: Mapping[int, int]) -> dict[int, torch.Tensor]:
        """Compute `counts[name]` more tokens of each sequence in one step: logits [count, vocab] of each."""
        rows = [self.sequences[name] for name in counts]
        starts = np.array([row.computed for row in rows], dtype=np.int64)
        lengths = np.array(list(counts.values()), dtype=np.int64)
        for row, count in zip(rows, lengths, strict=True):
            self._grow(row, row.computed + int(count))
        flat = [token for row, count in zip(rows, lengths, strict=True) for token in _next(row, int(count))]
        positions = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
        inputs = StepInputs(
            tokens=np.array(flat, dtype=np.int64),
            positions=positions,
            starts=starts,
            counts=lengths,
            tables=tuple(self._table(rows, group) for group in range(len(self._free))),
            sampled=np.arange(len(flat)),
        )
        with torch.inference_mode():
            logits = self.executor.logits(inputs).clone()
        for row, count in zip(rows, lengths, strict=True):
            row.computed += int(count)
        return dict(zip(counts, torch.split(logits, lengths.tolist()), strict=True))

    def run(self, schedule: Sequence[Mapping[int, int]]) -> dict[int, torch.Tensor]:
        """All steps of `schedule`; the logits of each sequence in order of its tokens."""
        parts: dict[int, list[torch.Tensor]] = {}
        for counts in schedule:
            for name, logits in self.advance(counts).items():
                parts.setdefault(name, []).append(logits)
        return {name: torch.cat(found) for name, found in parts.items()}

    def _grow(self, row: DrivenSequence, end: int) -> None:
        for free, pages in zip(self._free, row.pages, strict=True):
            while len(pages) * self.page_tokens < end:
                pages.append(free.pop())

    def _table(self, rows: Sequence[DrivenSequence], group: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
        width = max(len(row.pages[group]) for row in rows)
        table = np.zeros((len(rows), width), dtype=np.int32)
        for index, row in enumerate(rows):
            first = self._first_seen_page(row, group)
            table[index, first : len(row.pages[group])] = row.pages[group][first:]
        return table

    def _first_seen_page(self, row: DrivenSequence, group: int) -> int:
        window = self.windows[group]
        return max(0, row.computed - window + 1) // self.page_tokens if window else 0


def _next(row: DrivenSequence, count: int) -> list[int]:
    tokens = row.tokens[row.computed : row.computed + count]
    assert len(tokens) == count, "the sequence has no more tokens"
    return tokens
