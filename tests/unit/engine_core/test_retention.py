"""Retention: which cached pages stay, for how long, on a clock that the test moves."""

from dataclasses import replace

import pytest

from forebay.engine.request import NewRequest, Retention
from scheduler_build import LIMITS, Drive, full, hybrid, request

SMALL = replace(LIMITS, groups=full(10))
KEPT = tuple(range(16))
OTHER = tuple(range(60, 76))


def cached(drive: Drive, prompt: tuple[int, ...]) -> int:
    """Tokens of `prompt` that are in the cache, without touching anything."""
    match = drive.scheduler._planner._index.match([], (*prompt, 0), "")
    return match.blocks * drive.limits.page_tokens


def run(drive: Drive, new: NewRequest) -> None:
    drive.add(new)
    drive.run()


def fill(drive: Drive, first_id: int) -> None:
    """Requests that need eight pages between them, each of its own tokens."""
    for n in range(first_id, first_id + 2):
        run(drive, request(n, range(n * 100, n * 100 + 16), max_new_tokens=1))


def keep(priority: int, duration_s: float, start: int = 0, end: int = 16) -> tuple[Retention, ...]:
    return (Retention(start, end, priority, duration_s),)


def test_a_retained_prompt_outlives_ones_that_were_used_later() -> None:
    drive = Drive(SMALL)
    run(drive, request(1, KEPT, max_new_tokens=1, retention=keep(80, 60.0)))
    run(drive, request(2, OTHER, max_new_tokens=1))
    fill(drive, 3)
    assert cached(drive, KEPT) == 16
    assert cached(drive, OTHER) == 0


def test_without_retention_the_first_used_goes_first() -> None:
    drive = Drive(SMALL)
    run(drive, request(1, KEPT, max_new_tokens=1))
    run(drive, request(2, OTHER, max_new_tokens=1))
    fill(drive, 3)
    assert cached(drive, KEPT) == 0


def test_a_retention_that_is_over_counts_for_nothing() -> None:
    drive = Drive(SMALL)
    run(drive, request(1, KEPT, max_new_tokens=1, retention=keep(80, 60.0)))
    drive.expire(60.0)
    run(drive, request(2, OTHER, max_new_tokens=1))
    fill(drive, 3)
    assert cached(drive, KEPT) == 0, "its last use is the oldest"


def test_just_before_its_end_a_retention_still_counts() -> None:
    drive = Drive(SMALL)
    run(drive, request(1, KEPT, max_new_tokens=1, retention=keep(80, 60.0)))
    drive.expire(59.9)
    run(drive, request(2, OTHER, max_new_tokens=1))
    fill(drive, 3)
    assert cached(drive, KEPT) == 16


def test_a_low_priority_goes_before_normal_pages_that_were_used_earlier() -> None:
    drive = Drive(SMALL)
    run(drive, request(1, KEPT, max_new_tokens=1))
    run(drive, request(2, OTHER, max_new_tokens=1, retention=keep(0, 60.0)))
    run(drive, request(3, range(300, 316), max_new_tokens=1))
    assert cached(drive, KEPT) == 16
    assert cached(drive, OTHER) < 16


def test_only_the_pages_that_a_range_touches_are_kept() -> None:
    drive = Drive(SMALL)
    run(drive, request(1, KEPT, max_new_tokens=1, retention=keep(80, 60.0, start=0, end=6)))
    fill(drive, 3)
    fill(drive, 5)
    assert cached(drive, KEPT) == 8, "two pages hold tokens 0 to 5"


def test_the_time_starts_anew_when_another_request_asks_again() -> None:
    drive = Drive(SMALL)
    run(drive, request(1, KEPT, max_new_tokens=1, retention=keep(80, 60.0)))
    drive.expire(50.0)
    run(drive, request(2, KEPT, max_new_tokens=1, retention=keep(80, 60.0)))
    drive.expire(100.0)
    fill(drive, 3)
    fill(drive, 5)
    assert cached(drive, KEPT[:12]) == 12


def test_a_weaker_wish_does_not_end_a_stronger_one() -> None:
    drive = Drive(SMALL)
    run(drive, request(1, KEPT, max_new_tokens=1, retention=keep(80, 60.0)))
    run(drive, request(2, (*KEPT, 5), max_new_tokens=1, retention=keep(10, 1.0)))
    drive.expire(30.0)
    fill(drive, 3)
    fill(drive, 5)
    assert cached(drive, KEPT) == 16


def test_retained_pages_never_stand_in_the_way_of_work() -> None:
    drive = Drive(SMALL)
    for n in range(1, 6):
        run(drive, request(n, range(n * 50, n * 50 + 16), max_new_tokens=8, retention=keep(100, 1e6)))
    assert len(drive.ended) == 5
    drive.assert_at_rest()


@pytest.mark.parametrize("duration_s", [0.0, -1.0])
def test_no_time_is_no_wish(duration_s: float) -> None:
    drive = Drive(SMALL)
    run(drive, request(1, KEPT, max_new_tokens=1, retention=keep(80, duration_s)))
    assert drive.scheduler._pools.pools[0]._retained == {}


def test_pages_that_fall_out_of_a_window_are_kept_too() -> None:
    drive = Drive(replace(LIMITS, groups=hybrid(64, 12, 8), max_sequence_tokens=128))
    run(drive, request(1, KEPT, max_new_tokens=40, retention=keep(80, 60.0)))
    for n in range(2, 6):
        run(drive, request(n, range(n * 100, n * 100 + 16), max_new_tokens=10))
    assert cached(drive, KEPT) == 16


def test_an_aborted_request_keeps_what_it_asked_for() -> None:
    drive = Drive(SMALL)
    drive.add(request(1, KEPT, max_new_tokens=20, retention=keep(80, 60.0)))
    drive.step()
    drive.launch()
    drive.abort(1)
    drive.commit()
    fill(drive, 3)
    fill(drive, 5)
    assert cached(drive, KEPT) == 16
