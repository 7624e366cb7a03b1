"""The scheduler's rules one by one: admission, budget, chunks, reuse, preemption, ends, errors."""

from dataclasses import replace

import pytest

from forebay.contract.errors import Bug, InvalidRequest, InvalidSpec, Overloaded
from forebay.engine.limits import AdmissionPolicy, SchedulerLimits
from forebay.engine.plan import TOKEN_ON_DEVICE, StepResult
from forebay.engine.request import FinishReason
from scheduler_build import LIMITS, VOCABULARY, Drive, full, request
from script_runner import sequential_tokens


def test_one_request_gets_the_tokens_of_a_sequential_run_and_ends_by_length() -> None:
    drive = Drive()
    new = request(1)
    drive.add(new)
    drive.run()
    assert drive.tokens[1] == sequential_tokens(new, VOCABULARY)
    assert drive.ended[1].reason is FinishReason.LENGTH
    assert drive.ended[1].generated_tokens == 6
    drive.assert_at_rest()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_stop_token_ends_the_request_and_is_counted_but_not_delivered(depth: int) -> None:
    tokens = sequential_tokens(request(1), VOCABULARY)
    drive = Drive()
    drive.add(request(1, stop_token_ids=frozenset({tokens[3]})))
    drive.run(depth)
    assert drive.tokens[1] == tokens[:3]
    assert drive.ended[1].reason is FinishReason.STOP
    assert drive.ended[1].generated_tokens == 4
    drive.assert_at_rest()


def test_ignore_eos_generates_through_stop_tokens() -> None:
    tokens = sequential_tokens(request(1), VOCABULARY)
    drive = Drive()
    drive.add(request(1, stop_token_ids=frozenset(tokens), ignore_eos=True))
    drive.run()
    assert drive.tokens[1] == tokens
    assert drive.ended[1].reason is FinishReason.LENGTH


def test_a_long_prompt_runs_in_chunks_beside_decodes_within_the_budget() -> None:
    drive = Drive(replace(LIMITS, max_batch_tokens=16))
    drive.add(request(1, max_new_tokens=20))
    drive.step()
    drive.add(request(2, range(100, 160)))
    plans = [drive.step() for _ in range(5)]
    assert [plan.counts if plan else () for plan in plans] == [(1, 15), (1, 15), (1, 15), (1, 15), (1, 1)]
    assert [plan.samples if plan else () for plan in plans][:4] == [(True, False)] * 3 + [(True, True)]
    drive.run()
    assert drive.tokens[2] == sequential_tokens(request(2, range(100, 160)), VOCABULARY)


def test_the_second_step_in_flight_reads_its_input_token_on_the_device() -> None:
    drive = Drive()
    drive.add(request(1))
    drive.launch()
    second = drive.launch()
    assert second is not None
    assert second.tokens == (TOKEN_ON_DEVICE,)
    assert drive.launch() is None
    drive.commit()
    third = drive.launch()
    assert third is not None
    assert third.starts == (11,)


def test_no_step_is_planned_past_the_last_token() -> None:
    drive = Drive()
    drive.add(request(1, max_new_tokens=2))
    drive.run(depth=2)
    assert len(drive.runner.plans) == 2


def test_sampling_is_sent_once_for_each_slot_use() -> None:
    drive = Drive()
    drive.add(request(1))
    drive.run()
    assert [plan.fresh[0] is not None for plan in drive.runner.plans] == [True] + [False] * 5


def test_whole_pages_of_a_prefix_are_shared_and_the_last_token_is_computed_on_a_copy() -> None:
    drive = Drive(replace(LIMITS, min_copy_tokens=3))
    drive.add(request(1, range(16), max_new_tokens=5))
    drive.run()
    new = request(2, range(16))
    drive.add(new)
    plan = drive.step()
    assert plan is not None
    first = drive.runner.plans[0].page_tables[0][0]
    assert plan.starts == (15,)
    assert plan.page_tables[0][0][:3] == first[:3]
    assert plan.copies == ((0, first[3], plan.page_tables[0][0][3], 3),)
    drive.run()
    assert drive.tokens[2] == sequential_tokens(new, VOCABULARY)
    assert drive.ended[2].cached_tokens == 15
    drive.assert_at_rest()


def test_a_partial_page_is_copied_when_enough_of_it_agrees() -> None:
    drive = Drive(replace(LIMITS, min_copy_tokens=2))
    drive.add(request(1, range(16)))
    drive.run()
    new = request(2, [*range(7), 40, 41, 42])
    drive.add(new)
    plan = drive.launch()
    assert plan is not None
    source = drive.runner.plans[0].page_tables[0][0][1]
    assert plan.copies == ((0, source, plan.page_tables[0][0][1], 3),)
    assert plan.starts == (7,)
    assert drive.scheduler.load().pages_held == 1, "the page to copy from is held until the copy is done"
    drive.commit()
    drive.run()
    assert drive.tokens[2] == sequential_tokens(new, VOCABULARY)
    drive.assert_at_rest()


def test_a_request_that_fills_the_pool_is_admitted_although_a_copy_would_not_fit() -> None:
    drive = Drive(replace(LIMITS, groups=full(4), min_copy_tokens=2))
    drive.add(request(1, range(8), max_new_tokens=2))
    drive.run()
    new = request(2, [*range(7), *range(40, 48)], max_new_tokens=2)
    drive.add(new)
    drive.run()
    assert drive.tokens[2] == sequential_tokens(new, VOCABULARY)


def test_tenants_share_no_prefix_neither_whole_pages_nor_parts_of_one() -> None:
    drive = Drive(replace(LIMITS, min_copy_tokens=1))
    for request_id, tenant in enumerate(("", "a", "b", "a"), 1):
        drive.add(request(request_id, tenant=tenant))
        drive.run()
    assert [drive.ended[request_id].cached_tokens for request_id in (1, 2, 3, 4)] == [0, 0, 0, 9]


def test_without_prefix_reuse_nothing_is_kept() -> None:
    drive = Drive(replace(LIMITS, prefix_reuse=False))
    drive.add(request(1))
    drive.run()
    drive.add(request(2))
    drive.run()
    assert drive.ended[2].cached_tokens == 0
    assert drive.scheduler.load().pages_cached == 0


def test_cached_pages_give_way_least_recently_used_first() -> None:
    drive = Drive(replace(LIMITS, groups=full(8)))
    for request_id, first in ((1, 0), (2, 100)):
        drive.add(request(request_id, range(first, first + 12), max_new_tokens=1))
        drive.run()
    drive.add(request(3, range(12), max_new_tokens=1))
    drive.run()
    drive.add(request(4, range(200, 216), max_new_tokens=1))
    drive.run()
    drive.add(request(5, range(12), max_new_tokens=1))
    drive.run()
    assert drive.ended[3].cached_tokens == 8
    assert drive.ended[5].cached_tokens == 8, "used last, so it stayed"


def test_a_shortage_of_pages_preempts_the_latest_of_the_lowest_priority() -> None:
    drive = Drive(replace(LIMITS, groups=full(12), max_batch_tokens=64))
    first, second, third = (request(n, range(n * 20, n * 20 + 8), max_new_tokens=12) for n in (1, 2, 3))
    for new in (replace(first, priority=-1), second, third):
        drive.add(new)
    drive.run()
    assert drive.scheduler.load().preemptions > 0
    order = list(drive.ended)
    assert order[-1] == 1, "the lowest priority waits longest"
    for new in (first, second, third):
        assert drive.tokens[new.request_id] == sequential_tokens(new, VOCABULARY)
    drive.assert_at_rest()


def test_a_row_waits_for_pages_that_a_step_holds_instead_of_preempting() -> None:
    drive = Drive(replace(LIMITS, groups=full(9)))
    for n in (1, 2, 3):
        drive.add(request(n, range(n * 20, n * 20 + 7), max_new_tokens=8, deadline_s=1.0 if n == 3 else 1e9))
    for _ in range(5):
        drive.step()
    drive.launch()
    drive.expire(1.0)
    load = drive.scheduler.load()
    assert (load.pages_free, load.pages_held) == (0, 3)
    assert drive.launch() is None, "both rows need a page"
    assert drive.scheduler.load().preemptions == 0
    drive.run(depth=2)
    assert drive.scheduler.load().preemptions == 0
    assert drive.tokens[2] == sequential_tokens(request(2, range(40, 47), max_new_tokens=8), VOCABULARY)


def test_admission_leaves_a_page_for_each_running_row() -> None:
    drive = Drive(replace(LIMITS, groups=full(8)))
    drive.add(request(1, range(14), max_new_tokens=8))
    drive.step()
    drive.add(request(2, range(20, 36), max_new_tokens=1))
    drive.step()
    load = drive.scheduler.load()
    assert (load.waiting, load.pages_free) == (1, 4), "four pages would do, but the running row will need one"
    drive.run()
    assert drive.scheduler.load().preemptions == 0


def test_guaranteed_no_evict_never_preempts() -> None:
    drive = Drive(replace(LIMITS, groups=full(12), admission=AdmissionPolicy.GUARANTEED_NO_EVICT))
    for n in range(1, 6):
        drive.add(request(n, range(n * 20, n * 20 + 8), max_new_tokens=12))
    drive.run(depth=2)
    assert drive.scheduler.load().preemptions == 0
    assert len(drive.ended) == 5
    drive.assert_at_rest()


def test_a_higher_priority_is_admitted_first() -> None:
    drive = Drive(replace(LIMITS, max_running=1))
    drive.add(request(1))
    drive.add(request(2, priority=5))
    drive.run()
    assert list(drive.ended) == [2, 1]


def test_a_tenant_with_few_requests_does_not_wait_for_one_with_many() -> None:
    drive = Drive(replace(LIMITS, max_running=1))
    for n in range(1, 9):
        drive.add(request(n, tenant="many"))
    drive.add(request(9, tenant="few"))
    drive.run()
    assert list(drive.ended).index(9) <= 1


def test_a_full_queue_is_overloaded_with_a_time_to_come_back() -> None:
    drive = Drive()
    for n in range(LIMITS.max_waiting):
        drive.add(request(n))
    with pytest.raises(Overloaded) as caught:
        drive.add(request(100))
    assert caught.value.retry.after_s >= 1
    drive.run()
    assert len(drive.ended) == LIMITS.max_waiting


def test_deadlines_end_waiting_and_running_requests() -> None:
    drive = Drive(replace(LIMITS, max_running=1))
    drive.add(request(1, deadline_s=5.0, max_new_tokens=50))
    drive.add(request(2, deadline_s=4.0))
    drive.step()
    drive.launch()
    drive.expire(4.5)
    assert drive.ended[2].reason is FinishReason.DEADLINE
    drive.expire(5.0)
    assert drive.ended[1].reason is FinishReason.DEADLINE
    drive.commit()
    drive.assert_at_rest()
    drive.add(request(3, deadline_s=5.0))
    assert drive.ended[3].reason is FinishReason.DEADLINE


def test_draining_refuses_new_requests_and_finishes_the_old() -> None:
    drive = Drive(replace(LIMITS, max_running=1))
    drive.add(request(1))
    drive.add(request(2))
    drive.scheduler.drain()
    with pytest.raises(Overloaded):
        drive.add(request(3))
    drive.run()
    assert {end.reason for end in drive.ended.values()} == {FinishReason.LENGTH}


def test_the_end_of_the_grace_ends_everyone_with_drain() -> None:
    drive = Drive(replace(LIMITS, max_running=1))
    drive.add(request(1))
    drive.add(request(2))
    drive.launch()
    drive.collect_ended(drive.scheduler.end_all(FinishReason.DRAIN, 0.0))
    assert {end.reason for end in drive.ended.values()} == {FinishReason.DRAIN}
    drive.commit()
    drive.assert_at_rest()


def test_a_fault_ends_every_request_with_an_error_and_its_message() -> None:
    drive = Drive(replace(LIMITS, max_running=1), fault_step=2)
    drive.add(request(1))
    drive.add(request(2))
    drive.run(depth=2)
    assert {end.reason for end in drive.ended.values()} == {FinishReason.ERROR}
    assert {end.message for end in drive.ended.values()} == {"scripted fault"}
    drive.assert_at_rest()


@pytest.mark.parametrize(
    ("prompt", "max_new_tokens", "param"),
    [((), 1, "prompt"), (range(101), 1, "prompt"), (range(100), 29, "max_tokens"), ((1,), 0, "max_tokens")],
)
def test_a_request_that_can_never_finish_is_refused_naming_the_field(
    prompt: tuple[int, ...], max_new_tokens: int, param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Drive().add(request(1, prompt, max_new_tokens=max_new_tokens))
    assert caught.value.param == param


@pytest.mark.parametrize("token", [-1, 2**31])
def test_token_ids_out_of_range_are_refused(token: int) -> None:
    with pytest.raises(InvalidRequest):
        Drive().add(request(1, (token,)))


def test_a_request_that_just_fits_the_pool_finishes() -> None:
    drive = Drive(replace(LIMITS, groups=full(4)))
    drive.add(request(1, max_new_tokens=7))
    with pytest.raises(InvalidRequest):
        drive.add(request(2, max_new_tokens=8))
    drive.run(depth=2)
    assert drive.ended[1].reason is FinishReason.LENGTH


def test_an_id_that_is_live_cannot_be_added_again() -> None:
    drive = Drive()
    drive.add(request(1))
    with pytest.raises(Bug):
        drive.add(request(1))


def test_results_out_of_order_or_of_the_wrong_size_are_bugs() -> None:
    drive = Drive()
    drive.add(request(1))
    drive.launch()
    drive.launch()
    with pytest.raises(Bug):
        drive.scheduler.commit(StepResult.plain(2, (), (), ()), 0.0)
    with pytest.raises(Bug):
        drive.scheduler.commit(StepResult.plain(1, (), (), ()), 0.0)


@pytest.mark.parametrize(
    "changes", [{"groups": ()}, {"max_running": 0}, {"max_batch_tokens": 7}, {"max_in_flight": 3}], ids=str
)
def test_impossible_limits_name_their_field(changes: dict[str, object]) -> None:
    values = {name: getattr(LIMITS, name) for name in LIMITS.__slots__} | changes
    with pytest.raises(InvalidSpec) as caught:
        SchedulerLimits(**values)
    assert caught.value.field in changes


def test_pending_prefill_tokens_fall_to_zero_as_prompts_are_computed() -> None:
    drive = Drive(replace(LIMITS, max_batch_tokens=8))
    drive.add(request(1, range(20)))
    assert drive.scheduler.load().pending_prefill_tokens == 20
    drive.step()
    assert drive.scheduler.load().pending_prefill_tokens == 11
    drive.step()
    drive.step()
    assert drive.scheduler.load().pending_prefill_tokens == 0
