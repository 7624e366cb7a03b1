"""Runs step plans on torch: copies, inputs, forward, sampling.

`launch` hands the plan to one worker thread and returns at once, so the core loop does its input and output meanwhile
and may launch the next step before this one's tokens are known. Steps run strictly in launch order. A step that raises
ends as a `StepResult` with a fault; the core decides what that means.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from forebay.engine.attention.batch import build_batch, flat_positions
from forebay.engine.attention.paged import PagedCache
from forebay.engine.layers.quantize import rounded
from forebay.engine.loader.metadata import ModelConfig
from forebay.engine.loader.weights import open_tensors
from forebay.engine.models.registry import Cast, Model, load_model
from forebay.engine.plan import StepPlan, StepResult
from forebay.engine.runner.compute import Compute
from forebay.engine.runner.slots import SlotTable
from forebay.engine.sampling.sampler import sample

_TORCH_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class RunnerSizes:
    """Fixed sizes of a runner: KV pool in pages of `page_tokens`, slots, and CPU threads."""

    pages: int
    page_tokens: int
    max_running: int
    threads: int


class TorchStepHandle:
    """A step that was launched."""

    def __init__(self, future: "Future[StepResult]") -> None:
        self._future = future

    def done(self) -> bool:
        """Whether `result` would return at once."""
        return self._future.done()

    def result(self) -> StepResult:
        """The step's outcome; waits for it."""
        return self._future.result()


class TorchRunner:
    """A model, its KV pool and its slots behind the scheduler's `Runner` protocol."""

    def __init__(self, model: Model, cache: PagedCache, sizes: RunnerSizes) -> None:
        self._model = model
        self._cache = cache
        self._slots = SlotTable(sizes.max_running)
        self._worker = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="step", initializer=torch.set_num_threads, initargs=(sizes.threads,)
        )

    def launch(self, plan: StepPlan) -> TorchStepHandle:
        """Queue `plan` behind the steps already launched."""
        return TorchStepHandle(self._worker.submit(self._run, plan))

    def close(self) -> None:
        """Finish the steps in flight and stop the worker thread."""
        self._worker.shutdown(wait=True)

    def _run(self, plan: StepPlan) -> StepResult:
        try:
            with torch.inference_mode():
                return self._execute(plan)
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            return StepResult.failed(plan.step, f"step {plan.step}: {type(error).__name__}: {error}")

    def _execute(self, plan: StepPlan) -> StepResult:
        self._cache.copy_rows((source, target, rows) for _, source, target, rows in plan.copies)
        self._slots.assign(plan.slots, plan.fresh)
        slots = np.array(plan.slots, dtype=np.int64)
        starts = np.array(plan.starts, dtype=np.int64)
        counts = np.array(plan.counts, dtype=np.int64)
        rows, positions = flat_positions(starts, counts)
        tokens = self._slots.fill_tokens(np.array(plan.tokens, dtype=np.int64), slots[rows])
        batch = build_batch(starts, counts, plan.page_tables[0], self._cache.page_tokens, self._model.dtype)
        sampled = np.flatnonzero(plan.samples)
        logits = self._model.forward(
            torch.from_numpy(tokens),
            torch.from_numpy(positions),
            batch,
            self._cache,
            torch.from_numpy(np.cumsum(counts)[sampled] - 1),
        )
        sampled_slots, next_positions = slots[sampled], (starts + counts)[sampled]
        drawn = sample(logits, self._slots.sampling_rows(sampled_slots, next_positions)).numpy()
        self._slots.remember(sampled_slots, drawn)
        return StepResult.plain(
            step=plan.step,
            slots=tuple(sampled_slots.tolist()),
            epochs=tuple(plan.epochs[row] for row in sampled),
            tokens=tuple(drawn.tolist()),
        )


def build_runner(path: Path, config: ModelConfig, compute: Compute, sizes: RunnerSizes) -> TorchRunner:
    """Load the checkpoint at a resolved path and allocate its KV pool.

    Sets torch's thread count for the whole process. Raises `InvalidSpec` for a broken checkpoint or no memory.
    """
    torch.set_num_threads(sizes.threads)
    with torch.inference_mode():
        model = load_model(open_tensors(path, config), config, _cast(compute), sizes.threads)
        cache = PagedCache(config, sizes.pages, sizes.page_tokens, _TORCH_DTYPES[compute.kv])
    return TorchRunner(model, cache, sizes)


def _cast(compute: Compute) -> Cast:
    values, matmul = _TORCH_DTYPES[compute.values], _TORCH_DTYPES[compute.matmul]
    if compute.weights == compute.values:
        return lambda tensor: tensor.to(values).to(matmul)
    return lambda tensor: (rounded(tensor, compute.weights) if tensor.dim() == 2 else tensor.to(values)).to(matmul)
