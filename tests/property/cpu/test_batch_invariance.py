"""Logits of a request are bit-equal whatever its batch mates and its chunks are.

Random schedules over the C executor: requests come and go, prompts are cut anywhere, prefixes are shared and copied,
decodes run beside prefills, one or two threads compute. Each request's logits are compared, bit by bit, with those it
gets alone in one step.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cpu_build import drive, executor_of
from forebay.engine.runner.executor import Executor
from model_build import save_tiny

PAGES = 96
LENGTH = 100


@pytest.fixture(
    scope="module", params=[("llama", "int8"), ("gemma3", "bf16"), ("qwen3_moe", "int4"), ("qwen3", "fp32")]
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Executor]]:
    family, dtype = request.param
    folder = tmp_path_factory.mktemp(family)
    save_tiny(family, folder)
    return folder, [executor_of(folder, dtype, "cpu", threads, PAGES) for threads in (1, 2)]


def prompt(name: int) -> list[int]:
    """The first half is common to all, so that prefixes can be shared."""
    common = np.random.default_rng(0).integers(0, 512, LENGTH // 2).tolist()
    own = np.random.default_rng(name + 1).integers(0, 512, LENGTH - len(common)).tolist()
    return [*common, *own]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_composition_gives_the_bits_of_the_request_alone(
    served: tuple[Path, list[Executor]], data: st.DataObject
) -> None:
    path, executors = served
    executor = executors[data.draw(st.integers(0, 1), label="two threads")]
    driven = drive(executor, path, PAGES)
    found: dict[int, list[tuple[int, torch.Tensor]]] = {}
    waiting = list(range(data.draw(st.integers(2, 4), label="requests")))
    count = len(waiting)
    running: list[int] = []
    while waiting or running:
        if waiting and (not running or data.draw(st.booleans(), label="admit")):
            name = waiting.pop(0)
            driven.add(name, prompt(name))
            if running and data.draw(st.booleans(), label="share"):
                most = min(driven.sequences[running[0]].computed, LENGTH // 2)
                driven.share_prefix(name, running[0], data.draw(st.integers(0, most), label="shared"))
            running.append(name)
        counts = {}
        for name in running:
            left = LENGTH - driven.sequences[name].computed
            counts[name] = data.draw(st.sampled_from([1, 1, min(7, left), min(33, left), left]), label="count")
        places = {name: driven.sequences[name].computed for name in counts}
        for name, logits in driven.advance(counts).items():
            found.setdefault(name, []).append((places[name], logits))
        running = [name for name in running if driven.sequences[name].computed < LENGTH]
    for name in range(count):
        alone = drive(executors[0], path, PAGES)
        alone.add(name, prompt(name))
        expected = alone.advance({name: LENGTH})[name]
        for place, logits in found[name]:
            assert torch.equal(logits, expected[place : place + len(logits)])
