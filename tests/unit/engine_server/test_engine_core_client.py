"""The API process's client over a real socket pair, with the test at the core's end."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import pytest

from forebay.contract.errors import EngineFault, InvalidRequest, Overloaded
from forebay.engine.channel import CoreChannel, open_api_channel
from forebay.engine.messages import Abort, Add, Fault, Load, Message, Ping, Ready, Refused, Step
from forebay.engine.request import FinishReason, SamplingParams
from forebay.engine.server.core_client import CoreClient
from forebay.engine.server.errors import Unavailable

ADD = Add(0, (1, 2), SamplingParams(seed=1), 5, (), False, "", 0, 1e9)
LOAD = Load(0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0.0, 0.0)


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop run until `holds`."""
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - the state under test has no event to wait for
            await asyncio.sleep(0)


@dataclass
class Pair:
    """A client and the core's end of its channel."""

    client: CoreClient
    core: CoreChannel
    reader: "asyncio.Task[str]"

    def received(self) -> list[Message]:
        """What has come to the core's end."""
        return self.core.receive(1.0)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    ours, theirs = socket.socketpair()
    client = CoreClient(await open_api_channel(ours), lambda: 0.0)
    made = Pair(client, CoreChannel(theirs), asyncio.create_task(client.run()))
    yield made
    client.close()
    made.core.close()
    await made.reader


async def test_tokens_and_ends_reach_the_group_that_asked(pair: Pair) -> None:
    with pair.client.group() as first, pair.client.group() as second:
        first.submit(0, ADD.with_id)
        second.submit(0, ADD.with_id)
        second.submit(1, ADD.with_id)
        assert [message.request_id for message in pair.received() if isinstance(message, Add)] == [1, 2, 3]
        pair.core.send(Step((3, 1, 3), (30, 10, 31), (3,), ("length",), (2,), (4,), ("",)))
        progress = await second.next()
        assert [(item.index, list(item.tokens)) for item in progress] == [(1, [30, 31])]
        assert progress[0].end is not None
        assert (progress[0].end.reason, progress[0].end.cached_tokens) == (FinishReason.LENGTH, 4)
        assert [list(item.tokens) for item in await first.next()] == [[10]]
        assert (first.size, second.size) == (1, 1)
    assert pair.client.open_sequences == 0
    assert sorted(message.request_ids for message in pair.received() if isinstance(message, Abort)) == [(1,), (2,)]


async def test_what_comes_for_a_client_that_left_is_dropped(pair: Pair) -> None:
    with pair.client.group() as group:
        group.submit(0, ADD.with_id)
    pair.core.send(Step((1,), (5,), (1,), ("stop",), (1,), (0,), ("",)))
    pair.core.send(Ready(1.5))
    await until(lambda: pair.client.is_loaded)
    assert pair.client.load_seconds == 1.5


@pytest.mark.parametrize(
    ("refused", "error"),
    [(Refused(1, 400, "no", "prompt", 0.0), InvalidRequest), (Refused(1, 429, "no", "", 2.0), Overloaded)],
)
async def test_a_refusal_ends_the_group_with_its_error(pair: Pair, refused: Refused, error: type[Exception]) -> None:
    with pair.client.group() as group:
        group.submit(0, ADD.with_id)
        group.submit(1, ADD.with_id)
        pair.core.send(refused)
        with pytest.raises(error):
            await group.next()
    aborts = [message.request_ids for message in pair.received() if isinstance(message, Abort)]
    assert aborts == [(2,)]


async def test_a_fault_is_known_before_any_request_hears_of_it(pair: Pair) -> None:
    pair.core.send(Ready(1.0))
    with pair.client.group() as group:
        group.submit(0, ADD.with_id)
        waiting = asyncio.create_task(group.next())
        waiting.add_done_callback(lambda _: seen.append(pair.client.is_loaded))
        seen: list[bool] = []
        pair.core.send(Fault("out of luck"))
        with pytest.raises(EngineFault, match="out of luck"):
            await waiting
        assert seen == [False]
        assert await pair.reader == "out of luck"
        with pytest.raises(EngineFault):
            group.submit(1, ADD.with_id)


async def test_a_core_that_vanishes_fails_every_request(pair: Pair) -> None:
    with pair.client.group() as group:
        group.submit(0, ADD.with_id)
        pair.core.close()
        with pytest.raises(EngineFault, match="core process ended"):
            await group.next()


async def test_a_shutdown_ends_requests_as_unavailable(pair: Pair) -> None:
    with pair.client.group() as group:
        group.submit(0, ADD.with_id)
        pair.client.end_all("bye")
        with pytest.raises(Unavailable):
            await group.next()


async def test_a_stall_is_a_core_that_does_not_answer_or_does_not_step_while_work_waits() -> None:
    ours, theirs = socket.socketpair()
    now_s = 0.0
    client = CoreClient(await open_api_channel(ours), lambda: now_s)
    core = CoreChannel(theirs)
    reader = asyncio.create_task(client.run())

    async def send(load: Load) -> None:
        core.send(load)
        await until(lambda: client.load == load)

    now_s = 5.0
    assert client.stalled_s() == 0.0
    client.ping()
    client.ping()
    now_s = 8.0
    assert client.stalled_s() == 3.0
    assert [message for message in core.receive(1.0) if isinstance(message, Ping)] == [Ping(1)]
    await send(replace(LOAD, answered=1, running=1, steps=3))
    now_s = 20.0
    await send(replace(LOAD, answered=1, running=1, steps=3, waiting=1))
    assert client.stalled_s() == 12.0
    await send(replace(LOAD, answered=1, running=1, steps=4))
    assert client.stalled_s() == 0.0
    now_s = 90.0
    await send(replace(LOAD, answered=1, steps=4))
    assert client.stalled_s() == 0.0
    client.close()
    core.close()
    await reader
