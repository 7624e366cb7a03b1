"""The runner's contract with the scheduler: echoes, device tokens, copies, faults, steps in flight."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forebay.engine.request import SamplingParams
from forebay.engine.runner.runner import StepRunner
from model_build import Sequences, runner_for, save_tiny_llama

RANDOM = np.random.default_rng(11)
PROMPTS = [RANDOM.integers(0, 512, length).tolist() for length in (40, 23, 7, 65)]
SAMPLED = SamplingParams(temperature=0.9, top_k=50, top_p=0.95, seed=1234567890123)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StepRunner]:
    folder: Path = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(folder)
    runner = runner_for(folder)
    yield runner
    runner.close()


def alone(runner: StepRunner, prompt: list[int], tokens: int, sampling: SamplingParams | None = None) -> list[int]:
    """Tokens of a sequence that runs by itself."""
    sequences = Sequences(runner)
    sequences.add(0, prompt, sampling) if sampling else sequences.add(0, prompt)
    sequences.advance({0: len(prompt)})
    sequences.generate([0], tokens - 1)
    return sequences.by_slot[0].tokens[len(prompt) :]


@pytest.mark.parametrize("sampling", [None, SAMPLED], ids=["greedy", "sampled"])
def test_a_sequence_gets_the_same_tokens_alone_and_in_a_mixed_batch(
    runner: StepRunner, sampling: SamplingParams | None
) -> None:
    expected = alone(runner, PROMPTS[0], 20, sampling)
    sequences = Sequences(runner)
    sequences.add(3, PROMPTS[1], SAMPLED)
    sequences.advance({3: 23})
    sequences.add(5, PROMPTS[0], sampling) if sampling else sequences.add(5, PROMPTS[0])
    sequences.add(1, PROMPTS[3])
    sequences.advance({3: 1, 5: 19, 1: 10})
    sequences.advance({1: 33, 5: 21, 3: 1})
    sequences.advance({5: 1, 1: 22, 3: 1})
    sequences.generate([1, 3, 5], 18)
    assert sequences.by_slot[5].tokens[40:] == expected


def test_a_reused_prefix_gives_the_same_tokens(runner: StepRunner) -> None:
    prompt = PROMPTS[3]
    expected = alone(runner, prompt, 12)
    sequences = Sequences(runner)
    sequences.add(0, prompt[:50] + PROMPTS[2])
    sequences.advance({0: 57})
    for slot, shared in ((1, 32), (2, 45), (4, 50)):
        sequences.add(slot, prompt)
        copies = sequences.share_prefix(slot, 0, shared)
        assert bool(copies) == (shared % 16 > 0)
        sequences.advance({slot: len(prompt) - shared, 0: 1}, copies)
        sequences.generate([slot], 11)
        assert sequences.by_slot[slot].tokens[65:] == expected


def test_two_steps_in_flight_give_the_tokens_of_one(runner: StepRunner) -> None:
    expected = alone(runner, PROMPTS[0], 10, SAMPLED)
    sequences = Sequences(runner)
    sequences.add(0, PROMPTS[0], SAMPLED)
    handles = [runner.launch(sequences.plan({0: 40}))]
    for _ in range(9):
        handles.append(runner.launch(sequences.plan({0: 1})))
        sequences.append(handles.pop(0).result())
    sequences.append(handles[0].result())
    assert handles[0].done()
    assert sequences.by_slot[0].tokens[40:] == expected


def test_only_finished_rows_are_sampled_and_epochs_are_echoed(runner: StepRunner) -> None:
    sequences = Sequences(runner)
    sequences.add(2, PROMPTS[0])
    sequences.add(7, PROMPTS[2])
    result = sequences.advance({2: 10, 7: 7})
    assert (result.slots, result.epochs, len(result.tokens)) == ((7,), (107,), 1)
    nothing = sequences.advance({2: 5})
    assert (nothing.slots, nothing.tokens) == ((), ())


def test_a_slot_taken_over_uses_the_new_parameters(runner: StepRunner) -> None:
    expected = alone(runner, PROMPTS[1], 8)
    sequences = Sequences(runner)
    sequences.add(0, PROMPTS[1], SAMPLED)
    sequences.advance({0: 23})
    sequences.add(0, PROMPTS[1])
    sequences.advance({0: 23})
    sequences.generate([0], 7)
    assert sequences.by_slot[0].tokens[23:] == expected


def test_different_seeds_give_different_texts(runner: StepRunner) -> None:
    texts = {tuple(alone(runner, PROMPTS[0], 12, replace(SAMPLED, seed=seed))) for seed in range(5)}
    assert len(texts) == 5


def test_a_step_that_fails_is_a_fault_and_the_next_one_runs(runner: StepRunner) -> None:
    sequences = Sequences(runner)
    sequences.add(0, PROMPTS[2])
    plan = sequences.plan({0: 7})
    broken = replace(plan, page_tables=(((9999,),),))
    result = runner.launch(broken).result()
    assert result.fault is not None
    assert f"step {plan.step}" in result.fault
    assert result.tokens == ()
    assert runner.launch(plan).result().fault is None
