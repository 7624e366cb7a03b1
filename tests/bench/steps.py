"""Where a step's time goes on the C library, and how near its linear layers are to what this CPU can do.

Prints one JSON document: the peak rate of linear layers (the best of some shapes that stay in cache), the small model's
multiplications a token, and for steps of some shapes the whole time and that of each kind of op alone. An op alone
finds its weights in cache, so the sum can be below the whole. Run by the engine's benchmark as a process of its
own, which shares its priority.
"""

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from forebay.engine.cpu.executor import CpuExecutor, _step
from forebay.engine.loader.checkpoint import read_config
from forebay.engine.runner.build import build_executor
from forebay.engine.runner.compute import choose_compute, cpu_features
from forebay.engine.runner.executor import ExecutorSizes, StepInputs
from forebay.kernels.cpu import (
    NumberKind,
    Step,
    Tape,
    Unavailable,
    activation_kind,
    allocate_activation,
    linear,
    load,
    pack_linear,
)
from smollm2 import smollm2_gguf

PAGE_TOKENS, PAGES, MAX_ROWS, MAX_TOKENS = 16, 4096, 32, 512
SHAPES = {"1 row": (1, 1, 229), "8 rows": (8, 1, 229), "32 rows": (32, 1, 229), "32 rows, context 1000": (32, 1, 999)}
SHAPES |= {"prompt of 155": (1, 155, 0), "3 prompts of 155": (3, 155, 0), "512 of 982": (1, 512, 470)}
KINDS = {"bf16": NumberKind.BF16, "int8": NumberKind.INT8}


def best_s(run: Callable[[], object], times: int) -> float:
    """The fastest of some runs: other work on the machine only ever slows one."""
    found = float("inf")
    for _ in range(times):
        began_s = time.perf_counter()
        run()
        found = min(found, time.perf_counter() - began_s)
    return found


def peak(kind: NumberKind, threads: int) -> float:
    """Multiply-adds a second, times two, of the fastest linear layer of some sizes."""
    library = load()
    if isinstance(library, Unavailable):
        raise SystemExit(library.reason)
    found = 0.0
    for inputs, outputs, rows in ((576, 960, 256), (1024, 960, 128), (1536, 576, 256)):
        weight = pack_linear(torch.randn(outputs, inputs), kind)
        activation = allocate_activation(activation_kind(kind).allocate, rows, inputs)
        tape = Tape(library, [linear(activation, weight, torch.zeros(rows, outputs))] * 8, rows, threads)
        count = np.arange(rows, dtype=np.int64)
        one = np.array([0], dtype=np.int64)
        tables = (np.zeros((1, rows // PAGE_TOKENS), dtype=np.int32),)
        step = Step(count, count, one, np.array([rows], dtype=np.int64), tables, one)
        seconds = best_s(partial(tape.run, step), 20) / 8
        found = max(found, 2.0 * inputs * outputs * rows / seconds)
    return found


def step_inputs(rows: int, count: int, start: int) -> StepInputs:
    """`rows` rows of `count` tokens from position `start` on; each has pages of its own."""
    width = -(-(start + count) // PAGE_TOKENS)
    pages = np.arange(rows * width, dtype=np.int32).reshape(rows, width)
    return StepInputs(
        tokens=np.random.default_rng(0).integers(300, 8000, rows * count),
        positions=np.tile(np.arange(start, start + count, dtype=np.int64), rows),
        starts=np.full(rows, start, dtype=np.int64),
        counts=np.full(rows, count, dtype=np.int64),
        tables=(pages,),
        sampled=np.arange(1, rows + 1, dtype=np.int64) * count - 1,
    )


def profile(dtype: str, threads: int) -> dict[str, Any]:
    """Milliseconds of each shape's step, and of its ops by kind."""
    path = smollm2_gguf()
    compute = choose_compute(dtype, cpu_features(), "cpu", "default", "")
    sizes = ExecutorSizes((PAGES,), PAGE_TOKENS, MAX_ROWS, MAX_TOKENS, threads)
    executor = build_executor(path, read_config(path), compute, sizes)
    if not isinstance(executor, CpuExecutor):
        raise SystemExit("the C library does not serve here")
    found: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        inputs = step_inputs(*shape)
        step = _step(inputs)
        whole_s = best_s(partial(executor.logits, inputs), 10)
        ops: dict[str, float] = defaultdict(float)
        for op in executor._logits_tape._ops:
            alone = Tape(executor._library, [op], MAX_TOKENS, threads)
            kind = type(op.record).__name__.removesuffix("Record").lower()
            ops[kind] += best_s(partial(alone.run, step), 4)
        milliseconds = {kind: round(seconds * 1e3, 2) for kind, seconds in ops.items()}
        found[name] = {"whole_ms": round(whole_s * 1e3, 2), "ops_ms": milliseconds}
    return found


def layer_operations() -> tuple[float, float]:
    """Operations of all layers for one token, and of the output head; a multiply-add counts as two."""
    config = read_config(smollm2_gguf())
    head_dim = config.head_dim
    attention = config.hidden * head_dim * (2 * config.heads + 2 * config.kv_heads)
    layers = config.layers * (attention + 3 * config.hidden * config.intermediate)
    return 2.0 * layers, 2.0 * config.hidden * config.vocab


def main() -> None:
    """Print the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    layers, head = layer_operations()
    document = {
        "peak_operations_per_s": {name: peak(kind, options.threads) for name, kind in KINDS.items()},
        "layer_operations_per_token": layers,
        "head_operations_per_token": head,
        "steps": {dtype: profile(dtype, options.threads) for dtype in KINDS},
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
