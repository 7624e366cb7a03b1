"""A small model that proposes: a second executor over the target's page ids, with KV of its own.

The draft's KV of a slot lags behind and is caught up lazily: along with the prompt's chunks, and before proposing; at
most `catch_up_tokens` a step, so that a long prompt cannot stall the others. Cached prefix pages of the target need not
hold draft KV, so every sequence is computed from position 0 here; a shared page is then written again with equal
values. Proposals use the request's temperature and filters and the same noise as the target (seed and position), which
makes them agree more often than greedy ones would; what penalties or a grammar change is left to the verification.
"""

from collections.abc import Sequence

import numpy as np

from forebay.engine.runner.executor import Executor, IntArray, StepInputs
from forebay.engine.sampling.draw import draw
from forebay.engine.sampling.largest import FloatArray
from forebay.engine.sampling.philox import uniform
from forebay.engine.speculation.drafter import DraftRow

_FIRST_CAPACITY = 256


class _Sequence:
    """Tokens of a slot: the first `computed` have draft KV, and so have `ahead`, proposed after the known ones."""

    __slots__ = ("_tokens", "ahead", "computed", "length")

    def __init__(self, tokens: Sequence[int]) -> None:
        self.length = len(tokens)
        self._tokens = np.zeros(max(_FIRST_CAPACITY, 2 * self.length), dtype=np.int64)
        self._tokens[: self.length] = tokens
        self.computed = 0
        self.ahead: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        agreeing = 0
        for token, proposed in zip(tokens, self.ahead, strict=False):
            if token != proposed:
                break
            agreeing += 1
        end = self.length + len(tokens)
        if end > len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.zeros(end, dtype=np.int64)))
        self._tokens[self.length : end] = tokens
        self.length = end
        self.computed += agreeing
        self.ahead = []

    def slice(self, count: int) -> IntArray:
        """The next `count` tokens without draft KV."""
        return self._tokens[self.computed : self.computed + count]


class ModelDrafter:
    """Drafts with `executor` for up to `slots` sequences; `groups` are its layer groups' places in the target's."""

    def __init__(self, executor: Executor, groups: Sequence[int], catch_up_tokens: int) -> None:
        self._executor = executor
        self._groups = tuple(groups)
        self._catch_up_tokens = catch_up_tokens
        self._sequences: dict[int, _Sequence] = {}

    def start(self, slot: int, tokens: Sequence[int]) -> None:
        """Follow a new sequence from its start."""
        self._sequences[slot] = _Sequence(tokens)

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Append tokens; draft KV of proposals that came true is kept."""
        self._sequences[slot].extend(tokens)

    def forget(self, slot: int) -> None:
        """Drop the slot's sequence."""
        self._sequences.pop(slot, None)

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Catch up the rows that draft or prefill, and let those that are up to date propose their limits."""
        proposed: list[list[int]] = [[] for _ in rows]
        ready, logits = self._catch_up(rows)
        while ready:
            tokens = self._draw(rows, ready, proposed, logits)
            for place, token in zip(ready, tokens, strict=True):
                proposed[place].append(token)
            ready = [place for place in ready if len(proposed[place]) < rows[place].limit]
            if ready:
                logits = self._step(rows, ready, proposed)
        return proposed

    def _catch_up(self, rows: Sequence[DraftRow]) -> tuple[list[int], FloatArray]:
        """One forward over missing tokens; returns the rows that may draft, and their logits."""
        counts = self._missing(rows)
        places = [place for place, count in enumerate(counts) if count]
        if not places:
            return [], np.zeros((0, 0), dtype=np.float32)
        ready, wanted, end = [], [], 0
        tokens, starts = [], []
        for place in places:
            sequence, count = self._sequences[rows[place].slot], counts[place]
            tokens.append(sequence.slice(count))
            starts.append(sequence.computed)
            sequence.computed += count
            end += count
            if rows[place].limit and sequence.computed == sequence.length:
                ready.append(place)
                wanted.append(end - 1)
        logits = self._forward(
            [rows[place] for place in places],
            np.concatenate(tokens),
            np.array(starts),
            np.array([counts[place] for place in places]),
            np.array(wanted, dtype=np.int64),
        )
        return ready, logits

    def _missing(self, rows: Sequence[DraftRow]) -> list[int]:
        """How many tokens to compute for each row now: none for one that neither drafts nor prefills."""
        budget = self._catch_up_tokens
        counts = []
        for row in rows:
            sequence = self._sequences[row.slot]
            if row.limit:
                # The last token is computed again if need be: its logits are the first proposal.
                sequence.computed = min(sequence.computed, sequence.length - 1)
            missing = min(sequence.length, row.covered) - sequence.computed
            counts.append(max(0, min(missing, budget)) if row.limit or row.prefill else 0)
            budget -= counts[-1]
        return counts

    def _step(self, rows: Sequence[DraftRow], ready: list[int], proposed: list[list[int]]) -> FloatArray:
        """Compute the newest proposal of each ready row; returns their logits."""
        tokens, starts = [], []
        for place in ready:
            sequence = self._sequences[rows[place].slot]
            token = proposed[place][-1]
            tokens.append(token)
            starts.append(sequence.length + len(sequence.ahead))
            sequence.ahead.append(token)
        ones = np.ones(len(ready), dtype=np.int64)
        return self._forward(
            [rows[place] for place in ready], np.array(tokens), np.array(starts), ones, np.arange(len(ready))
        )

    def _forward(
        self, rows: Sequence[DraftRow], tokens: IntArray, starts: IntArray, counts: IntArray, sampled: IntArray
    ) -> FloatArray:
        flat_rows = np.repeat(np.arange(len(counts)), counts)
        firsts = np.cumsum(counts) - counts
        positions = np.arange(len(tokens)) - (firsts - starts)[flat_rows]
        tables = []
        for group in self._groups:
            width = max(len(row.tables[group]) for row in rows)
            table = np.zeros((len(rows), width), dtype=np.int32)
            for place, row in enumerate(rows):
                table[place, : len(row.tables[group])] = row.tables[group]
            tables.append(table)
        inputs = StepInputs(tokens, positions, starts, counts, tuple(tables), sampled)
        return np.asarray(self._executor.logits(inputs).numpy())

    def _draw(
        self, rows: Sequence[DraftRow], ready: list[int], proposed: list[list[int]], logits: FloatArray
    ) -> list[int]:
        seeds = np.array([rows[place].params.seed for place in ready], dtype=np.uint64)
        positions = [self._sequences[rows[place].slot].length + len(proposed[place]) for place in ready]
        numbers = uniform(seeds, np.array(positions, dtype=np.uint64))
        drawn = []
        for row_logits, place, number in zip(logits, ready, numbers, strict=True):
            params = rows[place].params
            drawn.append(draw(row_logits, params, number) if params.temperature > 0 else int(row_logits.argmax()))
        return drawn
