"""Chooses the tokens of a step from its logits, row by row where a row wants more than the largest logit.

A row with drafts has logits at 1 + k positions. They are gone through in order, each with its own noise, penalties and
mask, until the chosen token is not the drafted one, or ends the sequence: what is kept is what a step for each token
would have given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forebay.engine.plan import TokenLogprobs
from forebay.engine.runner.executor import IntArray
from forebay.engine.runner.slots import SlotTable
from forebay.engine.sampling.largest import FloatArray
from forebay.engine.sampling.philox import uniform
from forebay.engine.structured.matcher import GrammarFault


@dataclass(slots=True)
class Chosen:
    """Tokens of the sampled rows of a step: `counts` by row, `tokens` and `logprobs` flat; (row, message) of faults."""

    counts: list[int]
    tokens: list[int]
    logprobs: list[TokenLogprobs | None]
    faults: list[tuple[int, str]]


class Chooser:
    """Chooses for the slots of one table; keeps one scratch row of logits."""

    def __init__(self, table: SlotTable, vocab: int) -> None:
        self._table = table
        self._scratch = np.empty(vocab, dtype=np.float32)

    def choose(
        self, logits: FloatArray, slots: IntArray, positions: IntArray, drafts: Sequence[Sequence[int]]
    ) -> Chosen:
        """Tokens for rows of `slots`: `logits` and `positions` (of the tokens to choose) have 1 + len(draft) each."""
        if len(logits) == len(slots) and self._table.all_plain(slots):
            # numpy's argmax is an order of magnitude faster than torch's, and specified to return the first of equals.
            return Chosen([1] * len(slots), logits.argmax(axis=-1).tolist(), [], [])
        lengths = np.array([1 + len(draft) for draft in drafts], dtype=np.int64)
        numbers = uniform(np.repeat(self._table.seeds(slots), lengths), positions.astype(np.uint64))
        chosen = Chosen([], [], [], [])
        first = 0
        for index, (slot, draft) in enumerate(zip(slots.tolist(), drafts, strict=True)):
            last = first + len(draft) + 1
            self._choose_row(chosen, index, slot, draft, logits[first:last], numbers[first:last])
            first = last
        if all(entry is None for entry in chosen.logprobs):
            chosen.logprobs = []
        return chosen

    def _choose_row(
        self,
        chosen: Chosen,
        index: int,
        slot: int,
        draft: Sequence[int],
        logits: FloatArray,
        numbers: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    ) -> None:
        table = self._table
        before = len(chosen.tokens)
        try:
            if table.fault(slot) is None:
                row = table.row(slot)
                for place in range(len(draft) + 1):
                    token, logprobs = row.choose(logits[place], float(numbers[place]), self._scratch)
                    row.accept(token)
                    chosen.tokens.append(token)
                    chosen.logprobs.append(logprobs)
                    if place == len(draft) or token != draft[place] or token in row.stop_ids:
                        break
        except GrammarFault as error:
            table.fail(slot, error.message)
        fault = table.fault(slot)
        if fault is not None:
            chosen.faults.append((index, fault))
            del chosen.tokens[before:], chosen.logprobs[before:]
        chosen.counts.append(len(chosen.tokens) - before)
