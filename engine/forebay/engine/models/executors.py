"""Builds the torch executor that runs a checkpoint, native or through transformers.

The choice was made when the configuration was read (`ModelConfig.is_generic`). Called by the runner's builder, once for
the model and once for a draft model.
"""

from pathlib import Path

from forebay.engine.loader.metadata import ModelConfig
from forebay.engine.models.generic import GenericExecutor
from forebay.engine.models.registry import open_decoder
from forebay.engine.models.torch_executor import TorchExecutor
from forebay.engine.runner.compute import Compute
from forebay.engine.runner.executor import Executor, ExecutorSizes


def build_torch_executor(path: Path, config: ModelConfig, compute: Compute, sizes: ExecutorSizes) -> Executor:
    """Load the checkpoint at a resolved path; `InvalidSpec` when it is broken or does not fit in memory."""
    if config.is_generic:
        return GenericExecutor(path, config, compute, sizes)
    return TorchExecutor(open_decoder(path, config), compute, sizes)
