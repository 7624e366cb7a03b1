"""The executor on torch: any CPU, every native family, the reference for the others."""

from collections.abc import Sequence

import torch

from forebay.engine.attention.batch import build_batch
from forebay.engine.attention.paged import PagedCache
from forebay.engine.models.registry import Model
from forebay.engine.runner.executor import StepInputs


class TorchExecutor:
    """A torch model and its paged cache behind the `Executor` protocol."""

    def __init__(self, model: Model, cache: PagedCache) -> None:
        self._model = model
        self._cache = cache
        self.vocab = model.config.vocab

    def copy_rows(self, group: int, copies: Sequence[tuple[int, int, int]]) -> None:
        """See `Executor.copy_rows`; there is one group."""
        if group != 0:
            raise ValueError(f"layer group {group} of a model with one")
        self._cache.copy_rows(copies)

    def logits(self, inputs: StepInputs) -> torch.Tensor:
        """See `Executor.logits`."""
        batch = build_batch(
            inputs.starts, inputs.counts, inputs.tables[0].tolist(), self._cache.page_tokens, self._model.dtype
        )
        return self._model.forward(
            torch.from_numpy(inputs.tokens),
            torch.from_numpy(inputs.positions),
            batch,
            self._cache,
            torch.from_numpy(inputs.sampled),
        ).float()

    def hidden(self, inputs: StepInputs) -> torch.Tensor:
        """Not served by this executor: raises `NotImplementedError`."""
        raise NotImplementedError(f"embeddings of {len(inputs.sampled)} sequences")
