"""Leadership on the fake API server and a virtual clock."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fake_cluster import FakeCluster
from forebay.operator.cluster import LEASE_RESOURCE
from forebay.operator.lease import LeadershipLost, LeaseElector, LeaseSettings, lead
from sim_network import GOOD, FakeClient, NetworkPolicy
from virtual_loop import VirtualClock, VirtualLoop, run_virtual

DURATION_S, RENEW_S = 30.0, 10.0


class Office:
    """The API server and the electors that compete."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.api = FakeCluster(lambda: "2027-01-01T00:00:00Z")
        self.loop = loop

    def candidate(self, name: str, network: NetworkPolicy = GOOD) -> tuple[LeaseElector, LeaseSettings, FakeClient]:
        settings = LeaseSettings("system", "forebay", name, DURATION_S, RENEW_S)
        client = FakeClient(self.api, name, random.Random(name), network, lambda _: None)
        return LeaseElector(client, VirtualClock(self.loop), settings), settings, client

    def holder(self) -> str:
        lease = self.api.get(LEASE_RESOURCE.api_version, LEASE_RESOURCE.kind, "system", "forebay")
        return "" if lease is None else str(lease["spec"]["holderIdentity"])


def run(body: Callable[[Office], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()
    run_virtual(body(Office(loop)), loop)


async def hold_for(elector: LeaseElector, seconds: float) -> bool:
    """Try every second; true as soon as it is ours."""
    for _ in range(int(seconds)):
        if await elector.try_hold():
            return True
        await asyncio.sleep(1.0)
    return False


def test_the_first_candidate_gets_the_lease_and_the_second_waits() -> None:
    async def body(office: Office) -> None:
        one, *_ = office.candidate("one")
        two, *_ = office.candidate("two")
        assert await one.try_hold()
        assert not await two.try_hold()
        assert (one.holds(), two.holds(), office.holder()) == (True, False, "one")

    run(body)


def test_a_dead_holder_is_replaced_only_after_it_has_stopped_believing() -> None:
    async def body(office: Office) -> None:
        one, *_ = office.candidate("one")
        two, *_ = office.candidate("two")
        assert await one.try_hold()
        assert not await two.try_hold()
        start = office.loop.time()
        assert await hold_for(two, 100)
        assert office.loop.time() - start >= DURATION_S
        assert not one.holds()
        assert office.holder() == "two"

    run(body)


def test_a_holder_that_renews_is_never_replaced() -> None:
    async def body(office: Office) -> None:
        one, *_ = office.candidate("one")
        two, *_ = office.candidate("two")
        for _ in range(100):
            assert await one.try_hold()
            assert not await two.try_hold()
            await asyncio.sleep(RENEW_S)

    run(body)


async def compete(elector: LeaseElector, settings: LeaseSettings) -> None:
    """Lead as long as possible, again and again."""

    async def work() -> None:
        await asyncio.get_running_loop().create_future()

    while True:
        with contextlib.suppress(LeadershipLost):
            await lead(elector, settings, work)
        await asyncio.sleep(1.0)


def test_never_do_two_candidates_hold_at_once() -> None:
    async def body(office: Office) -> None:
        bad = NetworkPolicy(latency_s=3.0, lost_requests=0.6, lost_answers=0.3)
        electors = {name: office.candidate(name, bad) for name in ("one", "two", "three")}
        tasks = [asyncio.ensure_future(compete(elector, settings)) for elector, settings, _ in electors.values()]
        led: set[str] = set()
        for _ in range(4000):
            await asyncio.sleep(0.5)
            holding = [name for name, (elector, *_) in electors.items() if elector.holds()]
            assert len(holding) <= 1
            led.update(holding)
        for task in tasks:
            task.cancel()
        assert len(led) > 1, "the lease never moved: the test shows nothing"

    run(body)


def test_a_clean_stop_hands_over_at_once() -> None:
    async def body(office: Office) -> None:
        one, *_ = office.candidate("one")
        two, *_ = office.candidate("two")
        assert await one.try_hold()
        await one.release()
        assert not one.holds()
        assert await two.try_hold()

    run(body)


def test_a_restarted_process_of_the_same_name_continues() -> None:
    async def body(office: Office) -> None:
        one, *_ = office.candidate("one")
        again, *_ = office.candidate("one")
        assert await one.try_hold()
        assert await again.try_hold()

    run(body)


def test_work_ends_with_an_error_when_the_lease_cannot_be_renewed() -> None:
    async def body(office: Office) -> None:
        elector, settings, client = office.candidate("one")
        ended = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.sleep(10_000)
            finally:
                ended.set()

        leading = asyncio.ensure_future(lead(elector, settings, work))
        await asyncio.sleep(5)
        assert elector.holds()
        client._policy = NetworkPolicy(lost_requests=1.0)
        with pytest.raises(LeadershipLost):
            await leading
        assert ended.is_set()
        assert office.loop.time() < 5 + DURATION_S + RENEW_S

    run(body)
