"""Drafts in the scheduler: who may draft how much and when, what a result means, and what is reported."""

from dataclasses import replace
from itertools import pairwise

import pytest

from forebay.contract.errors import Bug
from forebay.engine.drafting import EMPTY_REST_TOKENS, FIRST_REST_TOKENS, MAX_REST_TOKENS, DraftState
from forebay.engine.limits import AdmissionPolicy, PoolGroup
from forebay.engine.plan import StepPlan, StepResult
from forebay.engine.request import DraftKind, FinishReason, Speculation
from scheduler_build import LIMITS, VOCABULARY, Drive, full, hybrid, request
from script_runner import sequential_tokens

NGRAM = Speculation(DraftKind.NGRAM, 4)
LONG = replace(LIMITS, max_sequence_tokens=1200, max_prompt_tokens=1000, groups=full(400))


def result(plan: StepPlan, *runs: tuple[int, ...], drafted: tuple[int, ...]) -> StepResult:
    """What a runner returns for rows that all sampled."""
    tokens = tuple(token for run in runs for token in run)
    return StepResult(plan.step, plan.slots, plan.epochs, tuple(map(len, runs)), tokens, drafted)


def limits_of(drive: Drive, steps: int) -> list[int]:
    """The first row's draft limit in each of the next steps."""
    found = []
    for _ in range(steps):
        plan = drive.step()
        assert plan is not None
        found.append(plan.draft_limits[0])
    return found


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("acceptance", [0.0, 0.6, 1.0])
def test_drafts_change_no_token(depth: int, acceptance: float) -> None:
    drive = Drive(LONG, acceptance=acceptance)
    added = [request(n, range(n, n + 12), max_new_tokens=60, speculation=NGRAM) for n in (1, 2, 3)]
    added.append(request(4, range(9), max_new_tokens=60))
    for new in added:
        drive.add(new)
    drive.run(depth)
    for new in added:
        assert drive.tokens[new.request_id] == sequential_tokens(new, VOCABULARY)
    drive.assert_at_rest()


def test_a_prompt_is_never_drafted_after_and_decodes_are_from_the_second_step_on() -> None:
    drive = Drive(LONG, acceptance=1.0)
    drive.add(request(1, max_new_tokens=100, speculation=NGRAM))
    assert limits_of(drive, 5) == [0, 2, 4, 4, 4]


def test_the_limit_falls_to_one_more_than_was_accepted() -> None:
    state = DraftState(Speculation(DraftKind.NGRAM, 8))
    for _ in range(3):
        state.note(state.limit(10), 8, state.limit(10), 10)
    assert state.limit(10) == 8
    state.note(8, 8, 2, 10)
    assert state.limit(10) == 3


def test_rows_that_guess_badly_rest_and_probe_more_and_more_rarely() -> None:
    drive = Drive(LONG, acceptance=0.0)
    drive.add(request(1, max_new_tokens=800, speculation=NGRAM))
    found = limits_of(drive, 800)
    drafting = [step for step, limit in enumerate(found) if limit]
    gaps = [later - earlier for earlier, later in pairwise(drafting)]
    assert gaps[:2] == [1, 1], "it needs a few steps to know"
    assert gaps[2:6] == [FIRST_REST_TOKENS + 1, 17, 33, 65]
    assert max(gaps) == MAX_REST_TOKENS + 1
    assert sum(found) <= 0.03 * len(found), "computed in vain"


def test_many_rows_that_guess_badly_probe_together_and_rarely() -> None:
    drive = Drive(replace(LONG, max_running=8, max_batch_tokens=64), acceptance=0.0)
    for n in range(1, 9):
        drive.add(request(n, range(n, n + 4), max_new_tokens=100, speculation=NGRAM))
    found = [sum(plan.draft_limits) for plan in (drive.step() for _ in range(100)) if plan is not None]
    drafting = [step for step, limit in enumerate(found) if limit]
    assert len(drafting) <= 8
    assert min(later - earlier for earlier, later in pairwise(drafting)) >= 16
    assert max(found) == 8, "one token each"


def test_many_rows_that_guess_well_draft_in_every_step() -> None:
    drive = Drive(replace(LONG, max_running=8, max_batch_tokens=64), acceptance=1.0)
    for n in range(1, 9):
        drive.add(request(n, range(n, n + 4), max_new_tokens=100, speculation=NGRAM))
    found = [plan.draft_limits for plan in (drive.step() for _ in range(12)) if plan is not None]
    assert found[1] == (1,) * 8, "the first step probes"
    assert all(limits == (4,) * 8 for limits in found[4:])


@pytest.mark.parametrize(("rows", "limits"), [(1, [2, 4, 4]), (8, [1, 2, 4]), (16, [1, 1, 1, 2, 4]), (64, [1] * 5)])
def test_the_share_that_must_be_accepted_grows_with_the_rows(rows: int, limits: list[int]) -> None:
    state = DraftState(NGRAM)
    found = []
    for _ in limits:
        found.append(state.limit(10, rows))
        state.note(found[-1], found[-1], found[-1], 10)
    assert found == limits


def test_a_probe_that_hits_ends_the_rest() -> None:
    drive = Drive(LONG, acceptance=0.0)
    drive.add(request(1, max_new_tokens=500, speculation=NGRAM))
    limits_of(drive, 20)
    drive.runner.acceptance = 1.0
    found = limits_of(drive, 40)
    first = next(step for step, limit in enumerate(found) if limit)
    assert found[first : first + 4] == [1, 2, 4, 4]


def test_a_step_with_drafts_runs_alone_and_others_overlap() -> None:
    drive = Drive(LONG, acceptance=0.0)
    drive.add(request(1, max_new_tokens=200, speculation=NGRAM))
    alone, overlapped = 0, 0
    for _ in range(150):
        while (plan := drive.launch()) is not None:
            overlapped += len(drive.launched) > 1
            if any(plan.draft_limits):
                alone += 1
                assert len(drive.launched) == 1
        drive.commit()
    assert alone >= 5
    assert overlapped > 100, "a resting row overlaps steps like any other"


def test_drafts_take_only_the_budget_that_is_left() -> None:
    drive = Drive(replace(LONG, max_batch_tokens=8), acceptance=1.0)
    for n in range(1, 5):
        drive.add(request(n, range(2), max_new_tokens=50, speculation=NGRAM))
    plans = [drive.step() for _ in range(6)]
    assert all(plan is not None and sum(plan.counts) + sum(plan.draft_limits) <= 8 for plan in plans)
    assert sum(plans[-1].draft_limits if plans[-1] else ()) == 4


def test_rows_without_room_to_draft_go_on_overlapping_for_a_while() -> None:
    drive = Drive(replace(LONG, max_batch_tokens=8, max_running=8), acceptance=1.0)
    for n in range(1, 9):
        drive.add(request(n, range(1), max_new_tokens=60, speculation=NGRAM))
    for _ in range(6):
        drive.step()
    assert drive.launch() is not None
    assert drive.launch() is not None, "eight rows fill the budget, so nobody waits to draft"


def test_no_draft_goes_beyond_the_length_of_its_request() -> None:
    drive = Drive(LONG, acceptance=1.0)
    drive.add(request(1, max_new_tokens=5, speculation=Speculation(DraftKind.NGRAM, 8)))
    assert limits_of(drive, 3) == [0, 2, 0]
    drive.run()
    assert len(drive.tokens[1]) == 5


def test_tokens_after_a_stop_token_in_an_accepted_run_are_dropped() -> None:
    drive = Drive(LONG)
    drive.add(request(1, max_new_tokens=50, speculation=NGRAM, stop_token_ids=frozenset({7})))
    drive.step()
    plan = drive.scheduler.plan()
    assert plan is not None
    assert plan.draft_limits == (2,)
    events = drive.scheduler.commit(result(plan, (5, 7, 9), drafted=(2,)), 0.0)
    assert events.tokens == (5,)
    assert events.ended[0].reason is FinishReason.STOP
    assert events.ended[0].generated_tokens == 3
    report = events.ended[0].speculation
    assert report is not None
    assert (report.drafted, report.accepted, report.steps, report.histogram) == (2, 2, 1, (0, 0, 1, 0, 0))
    drive.assert_at_rest()


def test_tokens_beyond_the_length_are_dropped_whatever_a_runner_says() -> None:
    drive = Drive(LONG)
    drive.add(request(1, max_new_tokens=4, speculation=NGRAM))
    drive.step()
    plan = drive.scheduler.plan()
    assert plan is not None
    events = drive.scheduler.commit(result(plan, (5, 6, 7, 8, 9, 10), drafted=(2,)), 0.0)
    assert events.tokens == (5, 6, 7)
    assert events.ended[0].reason is FinishReason.LENGTH
    assert events.ended[0].generated_tokens == 4


def test_the_report_has_the_mean_with_the_bonus_token() -> None:
    drive = Drive(LONG)
    drive.add(request(1, max_new_tokens=7, speculation=NGRAM))
    drive.step()
    for run, drafted in (((5, 6, 7), 2), ((8,), 3), ((9, 10), 1)):
        plan = drive.scheduler.plan()
        assert plan is not None
        events = drive.scheduler.commit(result(plan, run, drafted=(drafted,)), 0.0)
    report = events.ended[0].speculation
    assert report is not None
    assert (report.drafted, report.accepted, report.steps, report.histogram) == (6, 3, 3, (1, 1, 1, 0, 0))
    assert report.mean_acceptance_tokens == 2.0


def test_steps_in_which_nothing_was_drafted_are_not_reported_and_lead_to_a_short_rest() -> None:
    drive = Drive(LONG)
    drive.add(request(1, max_new_tokens=60, speculation=NGRAM))
    drive.step()
    allowed = 0
    while not drive.scheduler.idle:
        plan = drive.scheduler.plan()
        assert plan is not None
        allowed += bool(plan.draft_limits[0])
        drive.collect_ended(drive.scheduler.commit(result(plan, (5,), drafted=(0,)), 0.0).ended)
    report = drive.ended[1].speculation
    assert report is not None
    assert (report.drafted, report.steps, report.mean_acceptance_tokens) == (0, 0, 1.0)
    assert 60 // (EMPTY_REST_TOKENS + 1) - 1 <= allowed <= 60 // (EMPTY_REST_TOKENS + 1) + 1


@pytest.mark.parametrize("groups", [full(9), hybrid(40, 9, 6)], ids=["full", "hybrid"])
def test_drafts_shrink_before_anyone_is_preempted(groups: tuple[PoolGroup, ...]) -> None:
    drive = Drive(replace(LONG, groups=groups), acceptance=0.3)
    for n in (1, 2):
        drive.add(request(n, range(n * 20, n * 20 + 8), max_new_tokens=9, speculation=Speculation(DraftKind.MODEL, 8)))
    drive.run(depth=2)
    assert drive.scheduler.load().preemptions == 0, "without drafts both just fit"
    for n in (1, 2):
        new = request(n, range(n * 20, n * 20 + 8), max_new_tokens=9)
        assert drive.tokens[n] == sequential_tokens(new, VOCABULARY)


def test_promises_hold_with_drafts() -> None:
    policy = AdmissionPolicy.GUARANTEED_NO_EVICT
    drive = Drive(replace(LONG, groups=hybrid(30, 11, 6), admission=policy), acceptance=0.5)
    for n in range(1, 9):
        drive.add(request(n, range(n * 5, n * 5 + 15), max_new_tokens=20, speculation=NGRAM))
    drive.run(depth=2)
    assert drive.scheduler.load().preemptions == 0
    assert len(drive.ended) == 8
    drive.assert_at_rest()


def test_counters_add_up_over_all_requests() -> None:
    drive = Drive(LONG, acceptance=0.7)
    for n in (1, 2, 3):
        drive.add(request(n, max_new_tokens=40, speculation=NGRAM))
    drive.run()
    load = drive.scheduler.load()
    reports = [ended.speculation for ended in drive.ended.values()]
    assert load.drafted_tokens == sum(report.drafted for report in reports if report) > 0
    assert load.accepted_tokens == sum(report.accepted for report in reports if report) > 0
    assert 0 < load.draft_steps <= load.steps


def test_counts_that_do_not_fit_the_tokens_are_a_bug() -> None:
    drive = Drive(LONG)
    drive.add(request(1))
    plan = drive.scheduler.plan()
    assert plan is not None
    wrong = StepResult(plan.step, plan.slots, plan.epochs, (2,), (5,), (0,))
    with pytest.raises(Bug):
        drive.scheduler.commit(wrong, 0.0)
