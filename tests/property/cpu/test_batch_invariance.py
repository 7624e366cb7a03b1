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


class Composition:
    """A drawn schedule over one executor; `found` has (first position, logits) of every step of every request."""

    def __init__(self, executor: Executor, path: Path, data: st.DataObject) -> None:
        self._driven = drive(executor, path, PAGES)
        self._data = data
        self._waiting = list(range(data.draw(st.integers(2, 4), label="requests")))
        self._running: list[int] = []
        self.found: dict[int, list[tuple[int, torch.Tensor]]] = {}

    def run(self) -> None:
        """Steps until every request is computed."""
        while self._waiting or self._running:
            if self._waiting and (not self._running or self._chance("admit")):
                self._admit(self._waiting.pop(0))
            self._step()

    def _chance(self, label: str) -> bool:
        return bool(self._data.draw(st.integers(0, 1), label=label))

    def _admit(self, name: int) -> None:
        self._driven.add(name, prompt(name))
        if self._running and self._chance("share"):
            source = self._running[0]
            most = min(self._driven.sequences[source].computed, LENGTH // 2)
            self._driven.share_prefix(name, source, self._data.draw(st.integers(0, most), label="shared"))
        self._running.append(name)

    def _step(self) -> None:
        sequences = self._driven.sequences
        places = {name: sequences[name].computed for name in self._running}
        counts = {name: self._count(LENGTH - place) for name, place in places.items()}
        for name, logits in self._driven.advance(counts).items():
            self.found.setdefault(name, []).append((places[name], logits))
        self._running = [name for name in self._running if sequences[name].computed < LENGTH]

    def _count(self, left: int) -> int:
        return int(self._data.draw(st.sampled_from([1, 1, min(7, left), min(33, left), left]), label="count"))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_composition_gives_the_bits_of_the_request_alone(
    served: tuple[Path, list[Executor]], data: st.DataObject
) -> None:
    path, executors = served
    composition = Composition(executors[data.draw(st.integers(0, 1), label="two threads")], path, data)
    composition.run()
    for name, steps in composition.found.items():
        alone = drive(executors[0], path, PAGES)
        alone.add(name, prompt(name))
        expected = alone.advance({name: LENGTH})[name]
        for place, logits in steps:
            assert torch.equal(logits, expected[place : place + len(logits)])
