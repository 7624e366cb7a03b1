"""What a step may bring besides tokens: log probabilities, vectors, faults of single rows, the start of a request."""

from dataclasses import replace

import pytest

from forebay.contract.errors import Bug, InvalidRequest
from forebay.engine.plan import StepResult
from forebay.engine.request import FinishReason, RequestKind, SamplingParams
from scheduler_build import LIMITS, VOCABULARY, Drive, full, request
from script_runner import BROKEN_GRAMMAR, logprobs_of, prompt_hash, sequential_tokens

EMBED = RequestKind.EMBED


@pytest.mark.parametrize("depth", [1, 2])
def test_log_probabilities_come_with_their_tokens_and_only_to_who_asked(depth: int) -> None:
    drive = Drive()
    drive.add(request(1, sampling=SamplingParams(top_logprobs=2)))
    drive.add(request(2, range(20, 30)))
    drive.run(depth)
    assert drive.logprobs[1] == [logprobs_of(token) for token in drive.tokens[1]]
    assert drive.logprobs[2] == [None] * 6


def test_log_probabilities_of_a_stop_token_are_not_delivered() -> None:
    tokens = sequential_tokens(request(1), VOCABULARY)
    drive = Drive()
    drive.add(request(1, sampling=SamplingParams(top_logprobs=0), stop_token_ids=frozenset({tokens[2]})))
    drive.run()
    assert drive.logprobs[1] == [logprobs_of(token) for token in tokens[:2]]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_that_embeds_ends_with_the_vector_of_its_whole_prompt(depth: int) -> None:
    drive = Drive(replace(LIMITS, max_batch_tokens=16))
    drive.add(request(1, range(50), kind=EMBED, max_new_tokens=0))
    drive.add(request(2))
    drive.run(depth)
    ended = drive.ended[1]
    assert (ended.reason, ended.vector, ended.generated_tokens) == (
        FinishReason.STOP,
        (float(prompt_hash(range(50))),),
        0,
    )
    assert 1 not in drive.tokens
    assert drive.tokens[2] == sequential_tokens(request(2), VOCABULARY)
    drive.assert_at_rest()


def test_embedding_reuses_a_prefix_too() -> None:
    drive = Drive()
    for n in (1, 2):
        drive.add(request(n, range(30), kind=EMBED))
        drive.run()
    assert drive.ended[2].cached_tokens == 28
    assert drive.ended[2].vector == drive.ended[1].vector


def test_a_prompt_that_fills_the_engine_can_be_embedded() -> None:
    drive = Drive(replace(LIMITS, groups=full(25)))
    drive.add(request(1, range(100), kind=EMBED))
    drive.run()
    assert drive.ended[1].vector
    with pytest.raises(InvalidRequest):
        drive.add(request(2, range(101), kind=EMBED))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_fault_of_one_row_ends_that_request_and_no_other(depth: int) -> None:
    drive = Drive()
    drive.add(request(1))
    drive.add(request(2, range(20, 30), grammar=BROKEN_GRAMMAR))
    drive.run(depth)
    assert (drive.ended[2].reason, drive.ended[2].message) == (FinishReason.ERROR, "the grammar broke")
    assert drive.tokens[1] == sequential_tokens(request(1), VOCABULARY)
    drive.assert_at_rest()


def test_a_row_that_got_nothing_at_all_is_a_bug() -> None:
    drive = Drive()
    drive.add(request(1))
    plan = drive.scheduler.plan()
    assert plan is not None
    with pytest.raises(Bug):
        drive.scheduler.commit(StepResult(plan.step, plan.slots, plan.epochs, (0,), (), (0,)), 0.0)


def test_the_grammar_and_all_tokens_go_to_the_runner_when_a_slot_is_taken_again() -> None:
    drive = Drive(replace(LIMITS, groups=full(7), max_batch_tokens=64))
    drive.add(request(1, range(8), max_new_tokens=12))
    new = request(2, range(20, 28), max_new_tokens=12, grammar="g", stop_token_ids=frozenset({99}))
    drive.add(new)
    drive.run()
    starts = [start for plan in drive.runner.plans for start in plan.fresh if start is not None and start.grammar]
    assert len(starts) == drive.scheduler.load().preemptions + 1 >= 2
    for start in starts:
        assert (start.grammar, start.prompt_tokens, start.stop_ids) == ("g", 8, frozenset({99}))
        assert list(start.tokens) == [*new.prompt, *sequential_tokens(new, VOCABULARY)][: len(start.tokens)]
    assert len(starts[1].tokens) > 8


def test_the_start_says_what_was_cached_before_the_first_token() -> None:
    drive = Drive(replace(LIMITS, max_batch_tokens=8))
    drive.add(request(1, range(20)))
    drive.run()
    drive.add(request(2, range(20)))
    drive.launch()
    assert drive.commit().started == ((2, 16),)
    drive.abort(2)
    assert drive.ended[2].cached_tokens == 16


def test_a_start_is_told_once_though_the_request_is_preempted() -> None:
    drive = Drive(replace(LIMITS, groups=full(7), max_batch_tokens=64))
    for n in (1, 2):
        drive.add(request(n, range(n * 20, n * 20 + 8), max_new_tokens=12))
    drive.run(depth=2)
    assert drive.scheduler.load().preemptions > 0
    assert drive.started == {1: 0, 2: 0}
