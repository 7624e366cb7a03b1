"""Clients that leave are heard by the engine at once, in every phase, and leave nothing behind."""

import asyncio
import random
import socket

import pytest

from fault_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    Client,
    Served,
    Upstream,
    ask,
    chunk,
    post,
    reply,
)
from router_build import RunningRouter, endpoint, on_uvloop, until

STREAM = b'{"model":"m","stream":true}'
PLAIN = b'{"model":"m"}'
FIRST_EVENT = chunk(b'data: {"n": 0}\n\n')


def end_client(client: Client, leave: str) -> None:
    if leave == "half-close":
        client.writer.write_eof()
    elif leave == "reset":
        Served(b"", b"", 0, client.reader, client.writer).reset()
    else:
        client.writer.close()


PHASES: dict[str, tuple[bytes, ...]] = {
    "headers": (),
    "first_chunk": (SSE_HEAD,),
    "body": (SSE_HEAD, FIRST_EVENT),
}


@pytest.mark.parametrize("leave", ["close", "reset", "half-close"])
@pytest.mark.parametrize("body", [PLAIN, STREAM], ids=["plain", "stream"])
@pytest.mark.parametrize("phase", PHASES)
@on_uvloop
async def test_a_client_that_leaves_is_heard_by_the_engine_at_once(phase: str, body: bytes, leave: str) -> None:
    loop = asyncio.get_running_loop()
    gone = loop.create_future()

    async def script(served: Served) -> None:
        await served.send(*PHASES[phase])
        await served.gone()
        gone.set_result(loop.time())

    async with Upstream(script) as up, RunningRouter([endpoint("a", up.port)]) as router:
        async with Client(router.port) as client:
            await client.send(post(body))
            await until(lambda: bool(up.requests))
            if phase != "headers":
                await client.head()
            if phase == "body":
                await client.reader.readuntil(b"\n\n")
            left_s = loop.time()
            end_client(client, leave)
            assert await asyncio.wait_for(gone, 2) - left_s < 0.2
        await router.idle()
        assert router.gateway.metrics.cancelled.values[(phase,)] == 1


@on_uvloop
async def test_a_client_that_leaves_while_the_engine_is_being_connected_leaves_nothing() -> None:
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        async with RunningRouter([endpoint("a", port)]) as router:
            async with Client(router.port) as client:
                await client.send(post(STREAM))
                await until(lambda: bool(router.gateway.exchanges))
            await router.idle(0.5)
            assert router.gateway.metrics.cancelled.values[("connect",)] == 1


@on_uvloop
async def test_a_stall_of_the_client_is_no_stall_of_the_engine() -> None:
    payload = b"x" * 8_000_000

    async def script(served: Served) -> None:
        await served.send(reply(payload))

    async with (
        Upstream(script) as up,
        RunningRouter([endpoint("a", up.port)], stall_timeout_s=0.1) as router,
        Client(router.port) as client,
    ):
        await client.send(post(PLAIN))
        await client.head()
        await until(lambda: router.gateway.metrics.relayed_bytes > 0)
        await asyncio.sleep(0.4)
        assert len(await client.reader.readexactly(len(payload))) == len(payload)


@on_uvloop
async def test_a_client_that_never_reads_is_dropped_and_the_engine_hears_it() -> None:
    gone = asyncio.Event()

    async def script(served: Served) -> None:
        async def flood() -> None:
            await served.send(SSE_HEAD)
            while True:
                served.writer.write(chunk(b"z" * 65536))
                await served.writer.drain()

        flooding = asyncio.create_task(flood())
        await served.gone()
        flooding.cancel()
        gone.set()

    async with (
        Upstream(script) as up,
        RunningRouter([endpoint("a", up.port)], client_stall_timeout_s=0.2) as router,
        Client(router.port) as client,
    ):
        await client.send(post(STREAM))
        await asyncio.wait_for(gone.wait(), 5)


@on_uvloop
async def test_two_hundred_requests_of_which_half_are_cut_leave_nothing_behind() -> None:
    """Seeded: every other request is cut in its head, in its body, before the answer or inside the stream."""
    chance = random.Random(7)

    async def script(served: Served) -> None:
        await asyncio.sleep(0.002)
        if served.path == b"/v1/forebay/load":
            await served.send(reply(b"{}", status=b"404 Not Found"))
            return
        await served.send(SSE_HEAD)
        for _ in range(5):
            await served.send(FIRST_EVENT)
            await asyncio.sleep(0.002)
        await served.send(chunk(b"data: [DONE]\n\n"), LAST_CHUNK)

    async with (
        Upstream(script) as a,
        Upstream(script) as b,
        RunningRouter([endpoint("a", a.port), endpoint("b", b.port)]) as router,
    ):
        whole = 0

        async def one(number: int) -> None:
            nonlocal whole
            wire = post(STREAM, headers=f"x-forebay-session: {number}\r\n")
            async with Client(router.port) as client:
                if number % 2:
                    await client.send(wire)
                    response = await client.response()
                    whole += response.body.endswith(b"data: [DONE]\n\n")
                    return
                await client.send(wire[: chance.randrange(1, len(wire) + 1)])
                await asyncio.sleep(chance.random() * 0.03)

        await asyncio.gather(*(one(number) for number in range(200)))
        await router.idle(2.0)
        assert whole == 100
        await until(lambda: not router.gateway.connections)
        assert (await ask(router.port, post(STREAM))).complete
