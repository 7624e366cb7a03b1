"""The keyed queue on a virtual clock."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from forebay.contract.errors import Bug
from forebay.operator.queue import Done, Failed, Key, KeyedQueue, QueuePolicy
from virtual_loop import VirtualClock, VirtualLoop, run_virtual

A, B = Key("ModelDeployment", "apps", "a"), Key("ModelDeployment", "apps", "b")
POLICY = QueuePolicy(spacing_s=0.1, backoff_base_s=1.0, backoff_cap_s=8.0, event_backoff_cap_s=2.0)


def run(body: Callable[[KeyedQueue, VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()
    run_virtual(body(KeyedQueue(VirtualClock(loop), POLICY), loop), loop)


async def is_empty_for(queue: KeyedQueue, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await queue.take()
    except TimeoutError:
        return True
    return False


def test_a_key_added_many_times_is_taken_once() -> None:
    async def body(queue: KeyedQueue, _: VirtualLoop) -> None:
        for _number in range(5):
            queue.add(A)
        assert await queue.take() == A
        assert await is_empty_for(queue, 100)

    run(body)


def test_a_key_that_changes_during_its_pass_runs_once_more() -> None:
    async def body(queue: KeyedQueue, loop: VirtualLoop) -> None:
        queue.add(A)
        await queue.take()
        queue.add(A)
        queue.add(A)
        assert await is_empty_for(queue, 5), "one worker per key"
        queue.finish(A, Done())
        before = loop.time()
        assert await queue.take() == A
        assert loop.time() - before == pytest.approx(POLICY.spacing_s)
        queue.finish(A, Done())
        assert queue.is_idle

    run(body)


def test_other_keys_go_on_while_one_is_in_work() -> None:
    async def body(queue: KeyedQueue, _: VirtualLoop) -> None:
        queue.add(A)
        await queue.take()
        queue.add(B)
        assert await queue.take() == B

    run(body)


def test_the_earliest_of_several_wishes_counts() -> None:
    async def body(queue: KeyedQueue, loop: VirtualLoop) -> None:
        queue.add(A, 10.0)
        queue.add(A, 3.0)
        queue.add(A, 7.0)
        await queue.take()
        assert loop.time() == pytest.approx(3.0)

    run(body)


def test_requeue_after_brings_the_key_back_and_an_event_brings_it_sooner() -> None:
    async def body(queue: KeyedQueue, loop: VirtualLoop) -> None:
        queue.add(A)
        await queue.take()
        queue.finish(A, Done(requeue_after_s=20.0))
        await queue.take()
        assert loop.time() == pytest.approx(20.0)
        queue.finish(A, Done(requeue_after_s=20.0))
        queue.add(A)
        await queue.take()
        assert loop.time() == pytest.approx(20.0)

    run(body)


def test_failures_back_off_exponentially_up_to_the_cap_and_success_forgets_them() -> None:
    async def body(queue: KeyedQueue, loop: VirtualLoop) -> None:
        queue.add(A)
        waits = []
        for _number in range(6):
            start = loop.time()
            await queue.take()
            waits.append(loop.time() - start)
            queue.finish(A, Failed())
        assert waits == pytest.approx([0, 1, 2, 4, 8, 8])
        await queue.take()
        queue.finish(A, Done())
        assert queue.failing == 0
        queue.add(A)
        await queue.take()
        queue.finish(A, Failed())
        start = loop.time()
        await queue.take()
        assert loop.time() - start == pytest.approx(1.0)

    run(body)


def test_events_about_a_failing_key_shorten_the_wait_but_never_below_their_cap() -> None:
    async def body(queue: KeyedQueue, loop: VirtualLoop) -> None:
        queue.add(A)
        for _number in range(5):
            await queue.take()
            queue.finish(A, Failed())
        start = loop.time()
        queue.add(A)
        await queue.take()
        assert loop.time() - start == pytest.approx(POLICY.event_backoff_cap_s)

    run(body)


def test_a_server_that_asks_for_time_gets_it_in_spite_of_events() -> None:
    async def body(queue: KeyedQueue, loop: VirtualLoop) -> None:
        queue.add(A)
        await queue.take()
        queue.finish(A, Failed(retry_after_s=30.0))
        queue.add(A)
        await queue.take()
        assert loop.time() == pytest.approx(30.0)

    run(body)


def test_a_waiting_worker_wakes_for_a_key_that_is_due_sooner() -> None:
    async def body(queue: KeyedQueue, loop: VirtualLoop) -> None:
        queue.add(A, 100.0)
        waiting = asyncio.ensure_future(queue.take())
        await asyncio.sleep(1.0)
        queue.add(B)
        assert await waiting == B
        assert loop.time() == pytest.approx(1.0)

    run(body)


def test_ages_are_those_of_the_oldest_wait_and_the_oldest_pass() -> None:
    async def body(queue: KeyedQueue, _: VirtualLoop) -> None:
        queue.add(A)
        queue.add(B, 50.0)
        await asyncio.sleep(4.0)
        assert (queue.depth, queue.longest_wait_s(), queue.longest_pass_s()) == (1, 4.0, 0.0)
        await queue.take()
        await asyncio.sleep(3.0)
        assert (queue.depth, queue.longest_wait_s(), queue.longest_pass_s()) == (0, 0.0, 3.0)

    run(body)


def test_finishing_what_was_not_taken_is_a_bug() -> None:
    async def body(queue: KeyedQueue, _: VirtualLoop) -> None:
        with pytest.raises(Bug):
            queue.finish(A, Done())

    run(body)
