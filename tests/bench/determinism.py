"""What `determinism: batch_invariant` costs: steps of the same work under both settings, interleaved.

Each setting gets its own executor of the real small model on one thread. Rounds alternate between them, and the median
of the thread's own CPU time counts, so that other work on the machine hardly does. Writes `results/determinism.json`.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from forebay.engine.loader.checkpoint import read_config
from forebay.engine.runner.build import build_executor
from forebay.engine.runner.compute import choose_compute, cpu_features
from forebay.engine.runner.executor import Executor, ExecutorSizes, StepInputs
from smollm2 import smollm2_gguf

RESULT = Path(__file__).parent / "results" / "determinism.json"
PAGE_TOKENS = 16
SHAPES = {"decode of 1 row": (1, 1, 230), "decode of 32 rows": (32, 1, 230), "prefill of 155 tokens": (1, 155, 0)}


@dataclass(frozen=True)
class Cost:
    """CPU milliseconds of a step under both settings, and their ratio."""

    work: str
    dtype: str
    default_ms: float
    batch_invariant_ms: float
    ratio: float


def executor(dtype: str, determinism: str) -> Executor:
    """The real small model under one setting."""
    path = smollm2_gguf()
    compute = choose_compute(dtype, cpu_features(), "cpu", determinism)
    return build_executor(path, read_config(path), compute, ExecutorSizes((512,), PAGE_TOKENS, 32, 512, threads=1))


def work(rows: int, count: int, start: int) -> StepInputs:
    """`rows` rows that compute `count` tokens from position `start`, all on pages of their own."""
    width = -(-(start + count) // PAGE_TOKENS)
    return StepInputs(
        tokens=np.random.default_rng(1).integers(0, 49_000, rows * count),
        positions=np.tile(np.arange(start, start + count), rows),
        starts=np.full(rows, start),
        counts=np.full(rows, count),
        tables=(np.arange(rows * width, dtype=np.int32).reshape(rows, width),),
        sampled=np.arange(1, rows + 1) * count - 1,
    )


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="bf16,int8")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    costs = []
    for dtype in arguments.dtypes.split(","):
        sides = [executor(dtype, setting) for setting in ("default", "batch_invariant")]
        for name, shape in SHAPES.items():
            costs.append(cost(name, dtype, sides, work(*shape), arguments.rounds))
            print(costs[-1], flush=True)
    document = {
        "machine": f"{cpu_features().model_name}, 1 thread, {platform.system()}",
        "load_average": os.getloadavg()[0],
        "costs": [asdict(found) for found in costs],
    }
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def cost(name: str, dtype: str, sides: list[Executor], inputs: StepInputs, rounds: int) -> Cost:
    """Medians of both sides over interleaved rounds; their logits must be equal, bit by bit."""
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for side, found in zip(sides, times, strict=True):
            began_s = time.thread_time()
            side.logits(inputs)
            found.append(1000 * (time.thread_time() - began_s))
    if not torch.equal(sides[0].logits(inputs), sides[1].logits(inputs)):
        raise SystemExit(f"{name}, {dtype}: the settings give different logits")
    default, invariant = (statistics.median(found) for found in times)
    return Cost(name, dtype, round(default, 3), round(invariant, 3), round(invariant / default, 3))


if __name__ == "__main__":
    main()
