"""An executor without a model, whose logits depend on every token before them through the KV pages it was given.

Each KV cell holds a rolling hash of the whole sequence up to its position, read back through the page tables: a wrong
page, a lost token or a rejected draft that is believed changes the logits. Most of a logit comes from the last two
tokens, so that greedy text soon repeats itself and look-ups of what followed are often right.
"""

from collections.abc import Sequence

import numpy as np
import torch

from forebay.engine.runner.executor import StepInputs

_MODULUS = (1 << 61) - 1
_LOCAL_STATES = 12


class ScriptExecutor:
    """Logits over `vocab` tokens; `whole` is the share that depends on the whole sequence, `groups` how many tables."""

    def __init__(self, vocab: int, page_tokens: int, whole: float = 0.2, groups: int = 1, seed: int = 1) -> None:
        self.vocab = vocab
        self.steps: list[StepInputs] = []
        self._page_tokens = page_tokens
        self._whole = whole
        self._cells: list[dict[tuple[int, int], tuple[int, int]]] = [{} for _ in range(groups)]
        self._seed = seed

    def copy_rows(self, group: int, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy cells."""
        cells = self._cells[group]
        for source, target, tokens in copies:
            for offset in range(tokens):
                cells[target, offset] = cells[source, offset]

    def logits(self, inputs: StepInputs) -> torch.Tensor:
        """Logits of the wanted tokens."""
        self.steps.append(inputs)
        states = self._write(inputs)
        rows = [self._row(*states[place]) for place in inputs.sampled.tolist()]
        return torch.from_numpy(np.array(rows, np.float32).reshape(-1, self.vocab))

    def hidden(self, inputs: StepInputs) -> torch.Tensor:
        """Four numbers that depend on the whole sequence."""
        states = self._write(inputs)
        rows = [np.random.default_rng(states[place][0]).standard_normal(4) for place in inputs.sampled.tolist()]
        return torch.from_numpy(np.array(rows, np.float32).reshape(-1, 4))

    def _write(self, inputs: StepInputs) -> list[tuple[int, int]]:
        """Write the cells of all tokens; returns (hash of the sequence, hash of its last two tokens) of each."""
        states: list[tuple[int, int]] = []
        flat = 0
        for row, (start, count) in enumerate(zip(inputs.starts.tolist(), inputs.counts.tolist(), strict=True)):
            for position in range(start, start + count):
                assert inputs.positions[flat] == position
                token = int(inputs.tokens[flat])
                assert 0 <= token < self.vocab
                flat += 1
                found = [self._next(group, inputs, row, position, token) for group in range(len(self._cells))]
                assert len(set(found)) == 1, "the groups disagree"
                states.append((found[0][0], found[0][1]))
        assert flat == len(inputs.tokens)
        return states

    def _next(self, group: int, inputs: StepInputs, row: int, position: int, token: int) -> tuple[int, int]:
        table, size, cells = inputs.tables[group][row], self._page_tokens, self._cells[group]
        before, last = (0, 0)
        if position:
            before, last = cells[int(table[(position - 1) // size]), (position - 1) % size]
        state = (before * 1_000_003 + token + 1) % _MODULUS
        cells[int(table[position // size]), position % size] = (state, token + 1)
        return state, last * (self.vocab + 1) + token + 1

    def _row(self, state: int, pair: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        local = np.random.default_rng((self._seed, pair % _LOCAL_STATES)).standard_normal(self.vocab)
        whole = np.random.default_rng((self._seed, state)).standard_normal(self.vocab)
        return 3.0 * ((1.0 - self._whole) * local + self._whole * whole)
