"""One scripted race for each row of the abort table: what an abort does in every state of a request."""

from dataclasses import replace

import pytest

from forebay.contract.errors import Bug
from forebay.engine.request import TRANSITIONS, FinishReason, Request, State
from scheduler_build import LIMITS, REQUEST, VOCABULARY, Drive, full, request
from script_runner import sequential_tokens


def aborted(drive: Drive, request_id: int) -> None:
    events = drive.abort(request_id)
    assert [event.reason for event in events] == [FinishReason.ABORT]


def test_an_abort_that_overtakes_its_add_wins() -> None:
    drive = Drive()
    assert drive.abort(1) == []
    drive.add(request(1))
    assert drive.ended[1].reason is FinishReason.ABORT
    drive.assert_at_rest()


def test_a_tombstone_is_used_once_and_expires() -> None:
    drive = Drive(replace(LIMITS, tombstone_s=10.0))
    drive.abort(1)
    drive.abort(2)
    drive.expire(9.0)
    drive.add(request(1))
    drive.expire(10.0)
    drive.add(request(2))
    drive.run()
    assert drive.ended[1].reason is FinishReason.ABORT
    assert drive.ended[2].reason is FinishReason.LENGTH


def test_tombstones_are_bounded_and_the_oldest_goes_first() -> None:
    drive = Drive(replace(LIMITS, max_tombstones=2))
    for request_id in (1, 2, 3):
        drive.abort(request_id)
    for request_id in (1, 2, 3):
        drive.add(request(request_id))
    assert sorted(drive.ended) == [2, 3]


def test_an_abort_while_queued_leaves_the_queue() -> None:
    drive = Drive(replace(LIMITS, max_running=1))
    drive.add(request(1))
    drive.add(request(2))
    drive.step()
    aborted(drive, 2)
    assert drive.scheduler.load().waiting == 0
    drive.run()
    assert drive.ended[1].reason is FinishReason.LENGTH
    drive.assert_at_rest()


def test_an_abort_while_running_between_steps_frees_at_once() -> None:
    drive = Drive()
    drive.add(request(1))
    drive.step()
    aborted(drive, 1)
    drive.assert_at_rest()
    assert drive.launch() is None


@pytest.mark.parametrize("steps_before", [0, 1, 2, 5])
def test_an_abort_in_a_step_frees_at_its_commit_and_its_result_is_ignored(steps_before: int) -> None:
    drive = Drive(replace(LIMITS, max_batch_tokens=8))
    drive.add(request(1, range(30)))
    for _ in range(steps_before):
        drive.step()
    drive.launch()
    had = len(drive.tokens.get(1, []))
    aborted(drive, 1)
    load = drive.scheduler.load()
    assert load.pages_used == 0
    assert load.pages_held == 8
    assert load.free_slots == LIMITS.max_running - 1
    assert load.draining_requests == 1
    events = drive.commit()
    assert events.tokens == ()
    assert len(drive.tokens.get(1, [])) == had
    drive.assert_at_rest()


def test_an_abort_in_two_steps_frees_at_the_commit_of_the_later_one() -> None:
    drive = Drive()
    drive.add(request(1))
    drive.launch()
    drive.launch()
    aborted(drive, 1)
    drive.commit()
    assert drive.scheduler.load().pages_held > 0
    assert drive.scheduler.load().free_slots == LIMITS.max_running - 1
    drive.commit()
    drive.assert_at_rest()


def test_pages_held_by_a_step_are_not_given_to_anyone_before_its_commit() -> None:
    drive = Drive(replace(LIMITS, groups=full(4), max_running=2))
    drive.add(request(1))
    drive.launch()
    aborted(drive, 1)
    new = request(2, range(50, 60))
    drive.add(new)
    assert drive.launch() is None
    drive.commit()
    drive.run()
    assert drive.tokens[2] == sequential_tokens(new, VOCABULARY)


def test_a_stop_committed_while_the_next_step_is_in_flight_drains_until_that_step() -> None:
    tokens = sequential_tokens(request(1), VOCABULARY)
    drive = Drive()
    drive.add(request(1, stop_token_ids=frozenset({tokens[0]})))
    drive.launch()
    drive.launch()
    drive.commit()
    assert drive.ended[1].reason is FinishReason.STOP
    assert drive.scheduler.load().draining_requests == 1
    assert drive.abort(1) == [], "it has answered already"
    assert drive.commit().tokens == ()
    drive.assert_at_rest()


def preempted(depth: int) -> Drive:
    """Two requests that cannot both fit; the second has just been preempted with `depth` steps in flight."""
    drive = Drive(replace(LIMITS, groups=full(7), max_batch_tokens=64))
    drive.add(request(1, range(8), max_new_tokens=12))
    drive.add(request(2, range(20, 28), max_new_tokens=12))
    for _ in range(100):
        while len(drive.launched) < depth:
            drive.launch()
            if drive.scheduler.load().preemptions:
                return drive
        drive.commit()
    raise AssertionError("nothing was preempted")


@pytest.mark.parametrize("depth", [1, 2])
def test_an_abort_while_preempted_is_as_an_abort_while_queued(depth: int) -> None:
    drive = preempted(depth)
    assert drive.scheduler.load().waiting == 1
    aborted(drive, 2)
    assert drive.scheduler.load().waiting == 0
    drive.run(depth)
    assert drive.tokens[1] == sequential_tokens(request(1, range(8), max_new_tokens=12), VOCABULARY)
    drive.assert_at_rest()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_preempted_request_resumes_with_the_same_tokens(depth: int) -> None:
    drive = preempted(depth)
    drive.run(depth)
    assert drive.tokens[2] == sequential_tokens(request(2, range(20, 28), max_new_tokens=12), VOCABULARY)
    drive.assert_at_rest()


def test_an_abort_after_the_end_changes_nothing_for_others() -> None:
    drive = Drive()
    drive.add(request(1))
    drive.run()
    assert drive.abort(1) == []
    drive.add(request(2))
    drive.run()
    assert drive.ended[2].reason is FinishReason.LENGTH
    drive.assert_at_rest()


def test_a_slot_used_again_does_not_take_the_result_of_its_last_request() -> None:
    drive = Drive(replace(LIMITS, max_running=1, max_batch_tokens=16))
    drive.add(request(1))
    drive.launch()
    aborted(drive, 1)
    new = request(2, range(50, 60))
    drive.add(new)
    assert drive.launch() is None, "the slot is held by the step in flight"
    drive.commit()
    drive.run()
    assert drive.tokens[2] == sequential_tokens(new, VOCABULARY)


@pytest.mark.parametrize("start", list(State), ids=lambda state: state.value)
@pytest.mark.parametrize("target", list(State), ids=lambda state: state.value)
def test_only_the_listed_moves_are_possible(start: State, target: State) -> None:
    item = Request(REQUEST, 1)
    item.state = start
    if target in TRANSITIONS[start]:
        item.move(target)
        assert item.state is target
    else:
        with pytest.raises(Bug):
            item.move(target)
