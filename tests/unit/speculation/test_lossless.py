"""The same seed gives the same tokens: in any company, after preemption, and with every drafter.

The scripted executor makes this exact: its logits depend on every token of the sequence through the pages, and on
nothing else. What a sequence gets alone, one token a step, is what it must get.
"""

import numpy as np
import pytest

from forebay.engine.request import DraftKind, SamplingParams, Speculation
from runner_drive import Served
from script_executor import ScriptExecutor
from speculation_build import (
    PAGE_TOKENS,
    VOCAB,
    alone,
    drive,
    random_sequences,
    scripted_runner,
)

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("speculating", [False, True], ids=["plain", "speculating"])
def test_tokens_do_not_depend_on_company_chunks_preemption_or_drafts(seed: int, speculating: bool) -> None:
    random = np.random.default_rng(seed)
    served = random_sequences(random, 14, speculating)
    expected = [alone(one) for one in served]
    runner = scripted_runner()
    drive(runner).random_run(served, random, max_drafts=5 if speculating else 0)
    runner.close()
    assert [one.output for one in served] == expected
    if speculating:
        assert sum(one.accepted for one in served) > 8
        assert sum(one.drafted for one in served) > sum(one.accepted for one in served)


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("kind", DraftKind)
def test_a_full_draft_every_step_changes_nothing_at_any_temperature(kind: DraftKind, temperature: float) -> None:
    sampling = SamplingParams(temperature, seed=99)
    expected = alone(Served(PROMPT, sampling, 60))
    runner = scripted_runner()
    served = Served(PROMPT, sampling, 60, speculation=Speculation(kind, 4))
    driver = drive(runner)
    driver.step([(served, len(PROMPT))])
    while not served.ended:
        driver.step([(served, 1)], {served.slot: 4})
    runner.close()
    assert served.output == expected
    assert served.drafted > served.accepted > 0 or temperature > 1
    assert 60 <= len(driver.results) + served.accepted <= 64


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_drafts_for_itself_is_always_right(temperature: float) -> None:
    served = Served(
        PROMPT, SamplingParams(temperature, top_p=0.9, seed=5), 41, speculation=Speculation(DraftKind.MODEL, 3)
    )
    runner = scripted_runner(draft=ScriptExecutor(VOCAB, PAGE_TOKENS))
    driver = drive(runner)
    driver.step([(served, len(PROMPT))])
    for _ in range(10):
        driver.step([(served, 1)], {served.slot: 3})
    runner.close()
    assert served.ended
    assert served.accepted == served.drafted == 30
    assert {result.token_counts for result in driver.results[1:]} == {(4,)}


def test_a_stop_token_ends_the_kept_tokens_of_a_step() -> None:
    free = alone(Served(PROMPT, SamplingParams(), 40))
    stop = free[22]
    served = Served(PROMPT, SamplingParams(), 40, frozenset({stop}), speculation=Speculation(DraftKind.MODEL, 5))
    runner = scripted_runner(draft=ScriptExecutor(VOCAB, PAGE_TOKENS))
    driver = drive(runner)
    driver.step([(served, len(PROMPT))])
    while not served.ended:
        driver.step([(served, 1)], {served.slot: 5})
    runner.close()
    assert served.output == free[: free.index(stop) + 1]
    assert driver.results[-1].tokens[-1] == stop
    assert stop not in driver.results[-1].tokens[:-1]


def test_log_probabilities_of_kept_drafts_are_those_of_plain_decoding() -> None:
    sampling = SamplingParams(0.8, top_logprobs=2, seed=4)
    plain = Served(PROMPT, sampling, 30)
    fast = Served(PROMPT, sampling, 30, speculation=Speculation(DraftKind.MODEL, 4))
    for served in (plain, fast):
        runner = scripted_runner()
        driver = drive(runner)
        driver.step([(served, len(PROMPT))])
        while not served.ended:
            driver.step([(served, 1)], {served.slot: 4})
        runner.close()
    assert fast.accepted > 0
    assert fast.logprobs == plain.logprobs
    assert all(entry is not None and len(entry.top) == 2 for entry in plain.logprobs)


def test_two_steps_in_flight_give_the_tokens_of_one() -> None:
    expected = alone(Served(PROMPT, SamplingParams(1.0, repetition_penalty=1.2, seed=3), 20))
    served = Served(PROMPT, SamplingParams(1.0, repetition_penalty=1.2, seed=3), 20)
    runner = scripted_runner()
    driver = drive(runner)
    plans = [driver.plan([(served, len(PROMPT))], {})]
    handles = [runner.launch(plans[0])]
    for _ in range(19):
        plans.append(driver.plan([(served, 1)], {}))
        handles.append(runner.launch(plans[-1]))
        driver.take(plans.pop(0), handles.pop(0).result(), [served])
    driver.take(plans[0], handles[0].result(), [served])
    runner.close()
    assert served.output == expected
