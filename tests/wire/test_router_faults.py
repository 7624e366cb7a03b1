"""The fault matrix: what the router does when engines fail or clients leave, phase by phase.

Two engines, `a` is asked first. Each case states the status the client gets, how often each engine was asked, and
whether the answer was complete.
"""

import asyncio
import socket
from dataclasses import dataclass

import pytest

from fault_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    Client,
    Script,
    Served,
    Upstream,
    ask,
    chunk,
    healthy,
    post,
    reply,
)
from forebay.router.view import Discovered
from router_build import RunningRouter, endpoint, on_uvloop, routes, until

STREAM = b'{"model":"m","stream":true}'
PLAIN = b'{"model":"m"}'


def status(line: bytes, headers: bytes = b"") -> Script:
    async def script(served: Served) -> None:
        await served.send(reply(b'{"error": {"message": "from the engine"}}', status=line, headers=headers))

    return script


def raw(*parts: bytes, end: str = "close") -> Script:
    async def script(served: Served) -> None:
        await served.send(*parts)
        if end == "reset":
            served.reset()
        elif end == "close":
            served.close()
        await served.gone()

    return script


@dataclass(frozen=True)
class Case:
    """One row: what engine `a` does, and what must follow."""

    name: str
    script: Script
    status: int
    at_a: int
    at_b: int
    complete: bool = True


FIRST_EVENT = chunk(b'data: {"n": 0}\n\n')
LENGTH_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
CASES = [
    Case("502 not begun is tried elsewhere", status(b"502 Bad Gateway", b"retry-after: 1\r\n"), 200, 1, 1),
    Case("503 of a broken engine is passed on", status(b"503 Fault"), 503, 1, 0),
    Case("502 without a mark is passed on", status(b"502 Bad Gateway"), 502, 1, 0),
    Case("503 not begun is tried elsewhere", status(b"503 Busy", b"retry-after: 7\r\n"), 200, 1, 1),
    Case("429 is tried elsewhere once", status(b"429 Slow", b"retry-after: 7\r\n"), 200, 1, 1),
    Case("500 is passed on", status(b"500 Oops"), 500, 1, 0),
    Case("504 is passed on", status(b"504 Late"), 504, 1, 0),
    Case("400 is passed on", status(b"400 Bad"), 400, 1, 0),
    Case("404 is passed on", status(b"404 No"), 404, 1, 0),
    Case("422 is passed on", status(b"422 No"), 422, 1, 0),
    Case("reset before headers on a new connection", raw(end="reset"), 502, 1, 0),
    Case("close before headers on a new connection", raw(end="close"), 502, 1, 0),
    Case("close inside the head", raw(b"HTTP/1.1 200 OK\r\ncontent-"), 502, 1, 0),
    Case("not HTTP", raw(b"SSH-2.0-x\r\n\r\n", end="stay"), 502, 1, 0),
    Case("HTTP/2 preface", raw(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\r\n\r\n", end="stay"), 502, 1, 0),
    Case("bad status", raw(b"HTTP/1.1 0x200 OK\r\n\r\n", end="stay"), 502, 1, 0),
    Case(
        "two lengths",
        raw(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", end="stay"),
        502,
        1,
        0,
    ),
    Case(
        "length and chunked",
        raw(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", end="stay"),
        502,
        1,
        0,
    ),
    Case("header without colon", raw(b"HTTP/1.1 200 OK\r\nbroken\r\n\r\n", end="stay"), 502, 1, 0),
    Case("folded header", raw(b"HTTP/1.1 200 OK\r\nx: a\r\n b: c\r\n\r\n", end="stay"), 502, 1, 0),
    Case("endless head", raw(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70000, end="stay"), 502, 1, 0),
    Case("silence before headers", raw(end="stay"), 504, 1, 0),
    Case("silence before the first chunk", raw(SSE_HEAD, end="stay"), 200, 1, 0, complete=False),
    Case("silence in a stream", raw(SSE_HEAD, FIRST_EVENT, end="stay"), 200, 1, 0, complete=False),
    Case("silence in a body", raw(LENGTH_HEAD, b"{", end="stay"), 200, 1, 0, complete=False),
    Case("death before the first chunk", raw(SSE_HEAD), 200, 1, 0, complete=False),
    Case("death between chunks", raw(SSE_HEAD, FIRST_EVENT), 200, 1, 0, complete=False),
    Case("reset between chunks", raw(SSE_HEAD, FIRST_EVENT, end="reset"), 200, 1, 0, complete=False),
    Case("death inside a chunk", raw(SSE_HEAD, FIRST_EVENT, b"20\r\ndata: half"), 200, 1, 0, complete=False),
    Case("death inside a chunk size", raw(SSE_HEAD, FIRST_EVENT, b"2"), 200, 1, 0, complete=False),
    Case("bad chunk size", raw(SSE_HEAD, FIRST_EVENT, b"zz\r\n", end="stay"), 200, 1, 0, complete=False),
    Case("death inside a body", raw(LENGTH_HEAD, b"{"), 200, 1, 0, complete=False),
]


def pair(up_a: Upstream, up_b: Upstream) -> list[Discovered]:
    return [endpoint("a", up_a.port), endpoint("b", up_b.port)]


@pytest.mark.parametrize("body", [PLAIN, STREAM], ids=["plain", "stream"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
@on_uvloop
async def test_an_engine_fault_has_its_stated_outcome(case: Case, body: bytes) -> None:
    async with (
        Upstream(case.script) as a,
        Upstream(healthy) as b,
        RunningRouter(pair(a, b), first_byte_timeout_s=0.15, response_timeout_s=0.15, stall_timeout_s=0.15) as router,
    ):
        response = await ask(router.port, post(body))
        assert response.status == case.status
        assert response.complete == case.complete
        assert (len(a.requests), len(b.requests)) == (case.at_a, case.at_b)
        assert b"[DONE]" not in response.body or case.at_b == 1
        if not case.complete and b"event-stream" in response.head:
            assert b'\n\ndata: {"error":' in response.body
            assert response.body.endswith(b"\n\n")
        if case.status in (502, 504) and case.at_b == 0 and b"from the engine" not in response.body:
            assert b'"server_error"' in response.body
        await router.idle()
        again = await ask(router.port, post(body))
        assert again.status == 200 or case.at_a == 1


@on_uvloop
async def test_a_refused_connection_is_tried_elsewhere_whatever_the_budget() -> None:
    dead = free_port()
    async with Upstream(healthy) as b, RunningRouter([endpoint("a", dead), endpoint("b", b.port)]) as router:
        router.gateway.budget.tokens = 0.0
        assert (await ask(router.port, post(PLAIN))).status == 200
        assert router.gateway.metrics.retries.values[("connect",)] == 1


@on_uvloop
async def test_three_dead_engines_cost_three_attempts_and_give_a_503_to_come_back() -> None:
    dead = [endpoint(pod, free_port()) for pod in "abcd"]
    async with RunningRouter(dead) as router:
        response = await ask(router.port, post(PLAIN))
        assert (response.status, response.header("retry-after")) == (503, "1")
        assert router.gateway.metrics.failures.values[("connect",)] == 3


@on_uvloop
async def test_retry_after_keeps_new_requests_away_from_the_engine_that_asked_for_time() -> None:
    async with (
        Upstream(status(b"503 Busy", b"retry-after: 30\r\n")) as a,
        Upstream(healthy) as b,
        RunningRouter(pair(a, b)) as router,
    ):
        for _ in range(6):
            assert (await ask(router.port, post(PLAIN))).status == 200
        assert (len(a.requests), len(b.requests)) == (1, 6)


@on_uvloop
async def test_a_429_of_every_engine_is_passed_on_with_its_retry_after() -> None:
    slow = status(b"429 Slow", b"retry-after: 7\r\n")
    async with Upstream(slow) as a, Upstream(slow) as b, RunningRouter(pair(a, b)) as router:
        response = await ask(router.port, post(PLAIN))
        assert (response.status, response.header("retry-after")) == (429, "7")
        assert b"from the engine" in response.body
        assert len(a.requests) + len(b.requests) == 2


@on_uvloop
async def test_a_spent_budget_passes_the_engines_503_on() -> None:
    async with (
        Upstream(status(b"503 Busy", b"retry-after: 1\r\n")) as a,
        Upstream(healthy) as b,
        RunningRouter(pair(a, b)) as router,
    ):
        router.gateway.budget.tokens = 0.0
        assert (await ask(router.port, post(PLAIN))).status == 503
        assert len(b.requests) == 0


@on_uvloop
async def test_eight_answers_429_open_no_breaker() -> None:
    async with (
        Upstream(status(b"429 Slow")) as a,
        Upstream(status(b"429 Slow")) as b,
        RunningRouter(pair(a, b)) as router,
    ):
        for _ in range(8):
            await ask(router.port, post(PLAIN))
        a.script = b.script = healthy
        assert (await ask(router.port, post(PLAIN))).status == 200
        assert not any(s.breaker.blocks(router.gateway.now()) for s in router.gateway.fleet.view.endpoints)


@on_uvloop
async def test_eight_answers_500_never_stop_the_whole_pool() -> None:
    async with (
        Upstream(status(b"500 Oops")) as a,
        Upstream(status(b"500 Oops")) as b,
        RunningRouter(pair(a, b)) as router,
    ):
        for _ in range(8):
            assert (await ask(router.port, post(PLAIN))).status == 500
        a.script = b.script = healthy
        assert (await ask(router.port, post(PLAIN))).status == 200


@on_uvloop
async def test_an_engine_that_answers_500_gets_less_traffic_than_a_healthy_one() -> None:
    async with Upstream(status(b"500 Oops")) as a, Upstream(healthy) as b, RunningRouter(pair(a, b)) as router:
        for _ in range(20):
            await ask(router.port, post(PLAIN))
        assert len(a.requests) <= 5
        assert len(b.requests) >= 15


@on_uvloop
async def test_an_idle_connection_the_engine_closed_is_replaced_without_the_client_noticing() -> None:
    async def script(served: Served) -> None:
        if len(up.requests) in (2, 4):
            served.reset()
        else:
            await served.send(reply(b"{}"))

    async with Upstream(script) as up, RunningRouter([endpoint("a", up.port)]) as router:
        for _ in range(3):
            assert (await ask(router.port, post(PLAIN))).status == 200
        assert router.gateway.metrics.retries.values[("reset_reused",)] == 2


@on_uvloop
async def test_no_endpoint_is_503_and_an_unknown_model_404() -> None:
    async with RunningRouter([]) as router:
        response = await ask(router.port, post(PLAIN))
        assert (response.status, response.header("retry-after")) == (503, "1")
        response = await ask(router.port, post(b'{"model":"other"}'))
        assert response.status == 404
        assert b'"code":"model_not_found"' in response.body


@on_uvloop
async def test_draining_and_terminating_engines_get_nothing_new() -> None:
    async with Upstream(healthy) as a, Upstream(healthy) as b, RunningRouter(pair(a, b)) as router:
        leaving = Discovered(endpoint("a", a.port).endpoint, ready=True, terminating=True)
        router.gateway.fleet.apply_endpoints([leaving, endpoint("b", b.port)])
        for _ in range(5):
            assert (await ask(router.port, post(PLAIN))).status == 200
        assert (len(a.requests), len(b.requests)) == (0, 5)


@on_uvloop
async def test_a_request_at_an_engine_that_leaves_the_list_is_finished() -> None:
    go_on = asyncio.Event()

    async def script(served: Served) -> None:
        await served.send(SSE_HEAD, FIRST_EVENT)
        await go_on.wait()
        await served.send(chunk(b"data: [DONE]\n\n"), LAST_CHUNK)

    async with Upstream(script) as up, RunningRouter([endpoint("a", up.port)]) as router, Client(router.port) as client:
        await client.send(post(STREAM))
        answer = asyncio.create_task(client.response())
        await until(lambda: bool(up.requests))
        router.gateway.fleet.apply_endpoints([])
        go_on.set()
        response = await answer
        assert response.complete
        assert response.body.endswith(b"[DONE]\n\n")


@on_uvloop
async def test_a_connection_that_was_promised_to_stay_is_kept_when_a_drain_begins_meanwhile() -> None:
    go_on = asyncio.Event()

    async def script(served: Served) -> None:
        await served.send(SSE_HEAD, FIRST_EVENT)
        await go_on.wait()
        await served.send(LAST_CHUNK)

    async with Upstream(script) as up, RunningRouter([endpoint("a", up.port)]) as router, Client(router.port) as client:
        await client.send(post(STREAM))
        assert b"connection: close" not in await client.head()
        router.gateway.draining = True
        go_on.set()
        await client.reader.readuntil(LAST_CHUNK)
        await client.send(post(STREAM))
        assert (await client.response()).header("connection") == "close"
        assert await client.closed()


@on_uvloop
async def test_weights_split_sessions_and_a_session_stays() -> None:
    async with Upstream(healthy) as a, Upstream(healthy) as b:
        ends = [endpoint("a", a.port, "old"), endpoint("b", b.port, "new")]
        async with RunningRouter(ends, routes(("old", 80), ("new", 20))) as router:
            for session in range(100):
                seen: set[str | None] = set()
                for _ in range(2):
                    response = await ask(router.port, post(PLAIN, headers=f"x-forebay-session: s{session}\r\n"))
                    seen.add(response.header("x-forebay-revision"))
                assert len(seen) == 1
            assert 10 <= len(b.requests) // 2 <= 32
            router.gateway.fleet.apply_routes(routes(("old", 0), ("new", 1), epoch=2))
            before = len(a.requests)
            for _ in range(10):
                await ask(router.port, post(PLAIN))
            assert len(a.requests) == before


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
