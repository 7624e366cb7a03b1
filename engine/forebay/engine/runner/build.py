"""Builds the runner of a checkpoint: its executor, and the drafters that the configuration asks for.

Called once by the core process, and by tests and tools that want a model without a server.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from forebay.contract.errors import InvalidSpec
from forebay.engine.cpu.executor import CpuExecutor
from forebay.engine.cpu.memory import return_free_memory
from forebay.engine.cpu.support import cpu_problem
from forebay.engine.loader.checkpoint import read_config
from forebay.engine.loader.metadata import ModelConfig
from forebay.engine.models.executors import build_torch_executor
from forebay.engine.models.registry import open_decoder
from forebay.engine.request import DraftKind
from forebay.engine.runner.compute import Compute, cpu_features
from forebay.engine.runner.executor import Executor, ExecutorSizes
from forebay.engine.runner.runner import StepRunner, no_grammar
from forebay.engine.runner.slots import OpenGrammar
from forebay.engine.speculation.draft_model import ModelDrafter
from forebay.engine.speculation.drafter import Drafter
from forebay.engine.speculation.ngram import NgramDrafter

_CATCH_UP_TOKENS = 256
"""Most tokens of prompt that a draft model computes in one step: a long one must not stall the other requests."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """Which drafters there are: `ngram`, and a draft model when its resolved path is given."""

    ngram: bool = True
    model: Path | None = None


def build_executor(path: Path, config: ModelConfig, compute: Compute, sizes: ExecutorSizes) -> Executor:
    """Load the checkpoint at a resolved path and allocate its KV pools.

    Raises `InvalidSpec` for a broken checkpoint or no memory.
    """
    executor: Executor
    if compute.kernels == "torch":
        executor = build_torch_executor(path, config, compute, sizes)
    else:
        executor = CpuExecutor(open_decoder(path, config), compute, sizes)
    return_free_memory()
    return executor


def build_runner(
    path: Path,
    config: ModelConfig,
    compute: Compute,
    sizes: ExecutorSizes,
    drafting: Drafting = Drafting(),
    open_grammar: OpenGrammar = no_grammar,
) -> StepRunner:
    """The runner of the checkpoint at a resolved path. Sets torch's thread count for the whole process.

    Raises `InvalidSpec` for a broken checkpoint, no memory, or a draft model that does not fit the model.
    """
    torch.set_num_threads(sizes.threads)
    drafters: dict[DraftKind, Drafter] = {}
    if drafting.ngram:
        drafters[DraftKind.NGRAM] = NgramDrafter()
    if drafting.model is not None:
        drafters[DraftKind.MODEL] = _model_drafter(drafting.model, config, compute, sizes)
    executor = build_executor(path, config, compute, sizes)
    return StepRunner(executor, sizes.max_rows, sizes.threads, drafters, open_grammar)


def _model_drafter(path: Path, target: ModelConfig, compute: Compute, sizes: ExecutorSizes) -> ModelDrafter:
    config = read_config(path)
    problem = _misfit(config, target)
    if not problem and compute.kernels == "cpu":
        problem = cpu_problem(config, cpu_features(), compute.matmul, sizes.page_tokens)
    if problem:
        raise InvalidSpec(f"the draft model cannot serve this model: {problem}", field="draft_model")
    executor = build_executor(path, config, compute, replace(sizes, pages=sizes.pages[:1]))
    return ModelDrafter(executor, (0,), min(_CATCH_UP_TOKENS, sizes.max_tokens))


def _misfit(draft: ModelConfig, target: ModelConfig) -> str:
    """Why `draft` cannot propose for `target`; empty when it can."""
    if draft.vocab != target.vocab:
        return f"it has {draft.vocab} tokens and the model {target.vocab}; they must share a tokenizer"
    if draft.max_positions < target.max_positions:
        return f"it takes {draft.max_positions} positions and the model {target.max_positions}"
    if len(draft.layer_groups) > 1 or draft.layer_groups[0].window_tokens:
        return "its layers do not all have full attention"
    if target.layer_groups[0].window_tokens:
        return "the model has no layer with full attention, whose pages the draft would use"
    return ""
