"""The liveness verdict."""

import pytest

from forebay.operator.cluster import Json
from forebay.operator.probe import Probe, ProbeLimits, WatchBook
from forebay.operator.queue import Key, KeyedQueue, QueuePolicy


class HandClock:
    """A clock that tests move."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return self.now_s

    def wall_s(self) -> float:
        """See `Clock`."""
        return self.now_s


def version(uid: str, number: int) -> Json:
    return {"metadata": {"uid": uid, "resourceVersion": str(number)}}


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def queue(clock: HandClock) -> KeyedQueue:
    return KeyedQueue(clock, QueuePolicy())


def test_a_watch_that_misses_a_version_over_two_sweeps_is_dead_and_recovers() -> None:
    book = WatchBook()
    book.delivered("Model", version("a", 1), deleted=False)
    book.swept("Model", [version("a", 2)])
    assert book.dead() == {}, "the event may be on its way"
    book.swept("Model", [version("a", 2)])
    assert book.dead() == {"Model": "a"}
    book.delivered("Model", version("a", 2), deleted=False)
    book.swept("Model", [version("a", 2)])
    assert book.dead() == {}


def test_an_object_that_changes_all_the_time_does_not_look_like_a_dead_watch() -> None:
    book = WatchBook()
    for number in range(10):
        book.swept("Model", [version("a", number + 1)])
        book.delivered("Model", version("a", number), deleted=False)
    assert book.dead() == {}


def test_a_watch_of_a_kind_without_objects_is_never_dead() -> None:
    book = WatchBook()
    for _ in range(5):
        book.swept("Model", [])
    assert book.dead() == {}


def test_an_object_younger_than_the_list_is_not_forgotten() -> None:
    book = WatchBook()
    book.swept("Model", [])
    book.delivered("Model", version("a", 1), deleted=False)
    book.swept("Model", [])
    for _ in range(3):
        book.swept("Model", [version("a", 1)])
    assert book.dead() == {}


def test_a_dead_watch_is_a_complaint(clock: HandClock, queue: KeyedQueue) -> None:
    book = WatchBook()
    probe = Probe(clock, queue, book, ProbeLimits())
    for _ in range(2):
        book.swept("Model", [version("a", 2)])
    assert "watch of Model" in (probe.complaint() or "")


def test_waiting_keys_and_missing_sweeps_count_only_for_the_leader(clock: HandClock, queue: KeyedQueue) -> None:
    probe = Probe(clock, queue, WatchBook(), ProbeLimits(pass_s=10, wait_s=20, sweep_s=30))
    queue.add(Key("Model", "a", "b"))
    clock.now_s = 1000.0
    assert probe.complaint() is None, "a process that waits for the lease works on nothing"
    probe.leading()
    assert "due key" in (probe.complaint() or "")


async def test_a_hanging_pass_is_a_complaint_and_ends_with_it(clock: HandClock, queue: KeyedQueue) -> None:
    probe = Probe(clock, queue, WatchBook(), ProbeLimits(pass_s=10, wait_s=20, sweep_s=3000))
    probe.leading()
    queue.add(Key("Model", "a", "b"))
    await queue.take()
    clock.now_s = 11.0
    assert "a pass has been running" in (probe.complaint() or "")


def test_a_sweep_that_never_ends_is_a_complaint(clock: HandClock, queue: KeyedQueue) -> None:
    probe = Probe(clock, queue, WatchBook(), ProbeLimits(sweep_s=30))
    probe.leading()
    clock.now_s = 31.0
    assert "full look" in (probe.complaint() or "")
    probe.finished_sweep()
    assert probe.complaint() is None


def test_it_is_alive_but_not_ready_before_the_watches_start(clock: HandClock, queue: KeyedQueue) -> None:
    probe = Probe(clock, queue, WatchBook(), ProbeLimits())
    assert probe.complaint() is None
    assert "serve" in (probe.unready() or "")
    probe.watching()
    assert probe.unready() is None
