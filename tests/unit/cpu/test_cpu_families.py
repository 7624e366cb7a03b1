"""The C executor against the torch executor on tiny random models of every family, in every kind of schedule.

In fp32 both compute the same function up to rounding. Other precisions are held against torch with the same rounded
weights: what remains is activations rounded to bf16 or int8, bounded here as measured, with a margin of two.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cpu_build import drive, executor_of
from forebay.engine.cpu.support import cpu_problem
from forebay.engine.loader.checkpoint import read_config
from forebay.engine.runner.compute import cpu_features
from forebay.engine.runner.executor import StepInputs
from model_build import FAMILIES, save_tiny

LENGTHS = (90, 37, 3)
SCHEDULES: Mapping[str, list[dict[int, int]]] = {
    "whole": [{0: 90, 1: 37, 2: 3}],
    "chunked": [{0: 17}, {0: 40, 1: 30, 2: 3}, {0: 33, 1: 7}],
    "mixed with decodes": [{2: 2}, {0: 60, 2: 1}, {0: 29, 1: 35}, {0: 1, 1: 1}, {1: 1}],
    "token by token": [{0: 88, 1: 20}, *[{1: 1}] * 17, {0: 1}, {0: 1}, {2: 3}],
}
DIVERGENCE = {"bf16": 0.001, "int8": 0.005, "int4": 0.012}
"""Largest mean divergence per token, in nats, from torch with the same weights in fp32."""


@pytest.fixture(scope="module", params=list(FAMILIES))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    save_tiny(request.param, folder)
    config = read_config(folder)
    assert cpu_problem(config, cpu_features(), "int4", 16) == ""
    return folder


def prompts() -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(0, 512, length).tolist() for length in LENGTHS]


def logits_in(path: Path, dtype: str, kernels: str, schedule: list[dict[int, int]], threads: int = 1) -> torch.Tensor:
    """Logits [sum of lengths, vocab] of all prompts, computed as `schedule` says."""
    driven = drive(executor_of(path, dtype, kernels, threads), path)
    for name, prompt in enumerate(prompts()):
        driven.add(name, prompt)
    found = driven.run(schedule)
    return torch.cat([found[name] for name in range(len(LENGTHS))])


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_fp32_logits_equal_torch_in_any_schedule(tiny: Path, name: str) -> None:
    expected = logits_in(tiny, "fp32", "torch", SCHEDULES["whole"])
    got = logits_in(tiny, "fp32", "cpu", SCHEDULES[name])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=3e-4)
    assert float(expected.std()) > 1.0


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_other_precisions_stay_within_their_stated_tolerance(tiny: Path, dtype: str) -> None:
    expected = logits_in(tiny, dtype, "torch", SCHEDULES["whole"]).log_softmax(-1)
    got = logits_in(tiny, dtype, "cpu", SCHEDULES["chunked"]).log_softmax(-1)
    divergence = float((expected.exp() * (expected - got)).sum(-1).mean())
    print(f"{tiny.name} {dtype}: mean divergence {divergence:.5f} nats")
    assert divergence < DIVERGENCE[dtype]


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8", "int4"])
def test_every_schedule_gives_the_same_bits(tiny: Path, dtype: str) -> None:
    first, *others = [logits_in(tiny, dtype, "cpu", schedule) for schedule in SCHEDULES.values()]
    for other in others:
        assert torch.equal(first, other)
    assert torch.equal(first, logits_in(tiny, dtype, "cpu", SCHEDULES["chunked"], threads=2))


def test_a_copied_prefix_gives_the_same_bits(tiny: Path) -> None:
    driven = drive(executor_of(tiny, "bf16", "cpu"), tiny)
    prompt = prompts()[0]
    driven.add(0, prompt)
    whole = driven.run([{0: 90}])[0]
    for shared in (32, 41, 57):
        driven.add(1, prompt)
        driven.share_prefix(1, 0, shared)
        assert torch.equal(driven.run([{1: 90 - shared}])[1], whole[shared:])
    driven.sequences[0].computed = 57
    assert torch.equal(driven.run([{0: 33}])[0], whole[57:])


def test_hidden_states_equal_torch(tiny: Path) -> None:
    states = []
    for kernels in ("torch", "cpu"):
        driven = drive(executor_of(tiny, "fp32", kernels), tiny)
        driven.executor.logits = driven.executor.hidden  # type: ignore[method-assign] # the drive reads logits
        driven.add(0, prompts()[0])
        states.append(driven.run([{0: 50}, {0: 40}])[0])
    torch.testing.assert_close(states[1], states[0], rtol=1e-4, atol=3e-4)


def test_a_step_that_samples_nothing_still_writes_its_tokens(tiny: Path) -> None:
    executor = executor_of(tiny, "bf16", "cpu")
    driven = drive(executor, tiny)
    driven.add(0, prompts()[0])
    whole = driven.run([{0: 90}])[0]
    logits = executor.logits

    def unsampled(inputs: StepInputs) -> torch.Tensor:
        assert logits(replace(inputs, sampled=inputs.sampled[:0])).shape == (0, 512)
        return torch.zeros(len(inputs.tokens), 512)

    driven.add(1, prompts()[0])
    driven.executor.logits = unsampled  # type: ignore[method-assign] # a step without wanted rows
    driven.advance({1: 80})
    driven.executor.logits = logits  # type: ignore[method-assign] # and the plain one again
    assert torch.equal(driven.advance({1: 10})[1], whole[80:])
