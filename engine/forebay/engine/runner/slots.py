"""The runner's own memory of each slot: last sampled token and sampling parameters.

Slots outlive steps: a plan carries parameters only when a request takes a slot, and a decode planned before its input
token is known reads the token here. Steps run in launch order, so a write of an older epoch is always overwritten
before a newer one reads it. Arrays of one entry a slot; the runner's worker thread is the only user.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from forebay.engine.plan import TOKEN_ON_DEVICE
from forebay.engine.request import SlotStart
from forebay.engine.sampling.sampler import SamplingRows

IntArray = npt.NDArray[np.int64]


class SlotTable:
    """State of `size` slots."""

    def __init__(self, size: int) -> None:
        self._last_tokens = np.zeros(size, dtype=np.int64)
        self._temperatures = np.zeros(size, dtype=np.float64)
        self._top_k = np.zeros(size, dtype=np.int64)
        self._top_p = np.ones(size, dtype=np.float64)
        self._seeds = np.zeros(size, dtype=np.uint64)

    def assign(self, slots: Sequence[int], fresh: Sequence[SlotStart | None]) -> None:
        """Take over the parameters of rows that are new to their slots."""
        for slot, start in zip(slots, fresh, strict=True):
            if start is not None:
                params = start.sampling
                self._temperatures[slot] = params.temperature
                self._top_k[slot] = params.top_k
                self._top_p[slot] = params.top_p
                self._seeds[slot] = params.seed

    def fill_tokens(self, tokens: IntArray, slots: IntArray) -> IntArray:
        """`tokens` [n] with every TOKEN_ON_DEVICE replaced by the last token of its row's slot, `slots` [n]."""
        return np.where(tokens == TOKEN_ON_DEVICE, self._last_tokens[slots], tokens)

    def remember(self, slots: IntArray, tokens: IntArray) -> None:
        """Keep the tokens just sampled for `slots`."""
        self._last_tokens[slots] = tokens

    def sampling_rows(self, slots: IntArray, positions: IntArray) -> SamplingRows:
        """Parameters to draw the tokens at `positions` for `slots`."""
        return SamplingRows(
            temperatures=self._temperatures[slots],
            top_k=self._top_k[slots],
            top_p=self._top_p[slots],
            seeds=self._seeds[slots],
            positions=positions.astype(np.uint64),
        )
