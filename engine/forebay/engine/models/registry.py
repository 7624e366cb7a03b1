"""Which native module runs an architecture.

The names equal `loader.metadata.SUPPORTED_ARCHITECTURES` (a test holds both together): the metadata half refuses an
unknown architecture before torch is imported.
"""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import torch

from forebay.engine.attention.batch import AttentionBatch
from forebay.engine.attention.paged import PagedCache
from forebay.engine.loader.metadata import ModelConfig, refuse_architecture
from forebay.engine.loader.weights import TensorSource
from forebay.engine.models.llama import load_llama

Cast = Callable[[torch.Tensor], torch.Tensor]


class Model(Protocol):
    """A decoder over a flat token axis and a paged cache."""

    config: ModelConfig
    dtype: torch.dtype

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        cache: PagedCache,
        sampled: torch.Tensor,
    ) -> torch.Tensor:
        """Logits [len(sampled), vocab]; see `LlamaModel.forward`."""


LOADERS: Final[Mapping[str, Callable[[TensorSource, ModelConfig, Cast, int], Model]]] = {"llama": load_llama}


def load_model(source: TensorSource, config: ModelConfig, cast: Cast, threads: int) -> Model:
    """The model with all weights read through `cast`; `InvalidSpec` for an architecture without a module."""
    loader = LOADERS.get(config.architecture)
    if loader is None:
        raise refuse_architecture(config.architecture, "model")
    return loader(source, config, cast, threads)
