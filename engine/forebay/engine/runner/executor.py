"""What a runner asks of a model on one device: write KV, give logits.

The runner turns a plan into `StepInputs` and samples from the logits; an executor knows weights, KV layout and kernels.
A draft model is a second executor that uses the same page ids. Called from the runner's worker thread only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]
TableArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step as arrays.

    `tokens` and `positions` [n] are flat, row after row; row i computes `counts[i]` positions from `starts[i]`.
    `tables[g]` [rows, width] are page ids of layer group g, padded with any valid id; entries behind a group's window
    are never read. `sampled` [m] are the flat indices whose logits are wanted.
    """

    tokens: IntArray
    positions: IntArray
    starts: IntArray
    counts: IntArray
    tables: tuple[TableArray, ...]
    sampled: IntArray


@dataclass(frozen=True, slots=True)
class ExecutorSizes:
    """What an executor allocates: `pages` of `page_tokens` for each layer group, and buffers for the largest step.

    A step has at most `max_rows` rows and `max_tokens` tokens. `threads` compute.
    """

    pages: tuple[int, ...]
    page_tokens: int
    max_rows: int
    max_tokens: int
    threads: int


class Executor(Protocol):
    """A model with its KV pools."""

    vocab: int

    def copy_rows(self, group: int, copies: Sequence[tuple[int, int, int]]) -> None:
        """For each (source page, target page, tokens): copy the first `tokens` positions in all layers of a group."""

    def logits(self, inputs: StepInputs) -> torch.Tensor:
        """fp32 [len(sampled), vocab]; keys and values of all n tokens are written to the pools first.

        The next call may overwrite the tensor: a caller that keeps rows copies them.
        """

    def hidden(self, inputs: StepInputs) -> torch.Tensor:
        """fp32 [len(sampled), hidden]: output of the final norm, for embeddings."""
