"""A router as a process: start, admin port, change of routes, drain, and life under churn."""

import asyncio
import http.client
import json
import sys
import urllib.error
from contextlib import ExitStack
from pathlib import Path

import pytest

from eventually import eventually
from fault_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    Client,
    Response,
    Served,
    Upstream,
    ask,
    chunk,
    healthy,
    post,
    reply,
)
from router_build import until
from router_process import RouterProcess, StaticEndpoint, router_process

PLAIN = b'{"model":"m"}'
STREAM = b'{"model":"m","stream":true}'


def at(port: int, revision: str = "0123456789") -> StaticEndpoint:
    return StaticEndpoint(f"127.0.0.1:{port}", revision)


async def until_ready(router: RouterProcess) -> None:
    await until(lambda: b'"synced": true' in router.admin("/v1/forebay/routes"), 10)


async def test_the_admin_port_tells_health_readiness_metrics_and_routes(tmp_path: Path) -> None:
    async with Upstream(healthy) as up:
        with router_process(tmp_path, [at(up.port)]) as router:
            await until_ready(router)
            before = await asyncio.to_thread(router.admin, "/metrics")
            assert (await ask(router.port, post(PLAIN))).status == 200
            after = await asyncio.to_thread(router.admin, "/metrics")
            [endpoint] = router.report().endpoints
            assert (endpoint.address, endpoint.ready, endpoint.routable, endpoint.inflight) == (
                f"127.0.0.1:{up.port}",
                True,
                True,
                0,
            )
            assert router.admin("/health")
            assert router.admin("/ready")
            names = [[line.rpartition(" ")[0] for line in text.decode().splitlines()] for text in (before, after)]
            assert names[0] == names[1], "a series appeared after the first scrape"
            assert router.metric('forebay_router_requests_total{route="chat_completions",code="2xx"}') == 1


async def test_a_router_without_routes_is_alive_but_not_ready(tmp_path: Path) -> None:
    with router_process(tmp_path, []) as router:
        await until_ready(router)
        assert json.loads(router.admin("/ready"))["status"] == "ok"
    broken = tmp_path / "broken"
    broken.mkdir()
    with router_process(broken, [], "--static-routes", str(tmp_path / "missing.json")) as router:
        assert router.admin("/health")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            router.admin("/ready")
        assert (await ask(router.port, b"GET /ready HTTP/1.1\r\nHost: t\r\n\r\n")).status == 503
        assert (await ask(router.port, post(PLAIN))).status == 503


async def test_a_changed_routes_file_moves_traffic(tmp_path: Path) -> None:
    async with Upstream(healthy) as a, Upstream(healthy) as b:
        with router_process(tmp_path, [at(a.port, "old")]) as router:
            await until_ready(router)
            assert (await ask(router.port, post(PLAIN))).header("x-forebay-revision") == "old"
            router.write([at(a.port, "old"), at(b.port, "new")], {"old": 0, "new": 1})
            await until(lambda: router.report().epoch == router.epoch)
            assert (await ask(router.port, post(PLAIN))).header("x-forebay-revision") == "new"


async def test_sigterm_loses_no_request_and_exits_zero(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def script(served: Served) -> None:
        if b"stream" in served.body:
            await served.send(SSE_HEAD, chunk(b"data: 1\n\n"))
            await go_on.wait()
            await served.send(chunk(b"data: [DONE]\n\n"), LAST_CHUNK)
        else:
            await served.send(reply(b"{}"))

    async with Upstream(script) as up:
        with router_process(tmp_path, [at(up.port)], "--drain-seconds", "1") as router:
            await until_ready(router)
            async with Client(router.port) as streaming, Client(router.port) as kept:
                await streaming.send(post(STREAM))
                await streaming.head()
                await kept.send(post(PLAIN))
                assert (await kept.response()).header("connection") is None
                router.terminate()
                await until(lambda: router.metric("forebay_router_draining") == 1)
                # Until endpoints have propagated, new connections and kept ones are still served, and told to go.
                assert (await ask(router.port, b"GET /ready HTTP/1.1\r\nHost: t\r\n\r\n")).status == 503
                fresh = await ask(router.port, post(PLAIN))
                assert (fresh.status, fresh.header("connection")) == (200, "close")
                await kept.send(post(PLAIN))
                assert (await kept.response()).header("connection") == "close"
                assert await kept.closed()
                await asyncio.sleep(1.2)
                assert router.process.poll() is None, "it left a stream in flight"
                go_on.set()
                tail = await asyncio.wait_for(streaming.reader.read(), 5)
                assert tail.endswith(LAST_CHUNK)
            assert await asyncio.to_thread(router.process.wait, 5) == 0


async def test_the_drain_path_turns_readiness_off_and_keeps_serving(tmp_path: Path) -> None:
    async with Upstream(healthy) as up:
        with router_process(tmp_path, [at(up.port)]) as router:
            await until_ready(router)
            assert json.loads(router.admin("/v1/forebay/drain", "POST")) == {"draining": True, "inflight": 0}
            with pytest.raises(urllib.error.HTTPError, match="503"):
                router.admin("/ready")
            response = await ask(router.port, post(PLAIN))
            assert (response.status, response.header("connection")) == (200, "close")


async def test_a_bad_command_line_is_refused_with_the_flag_at_fault(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forebay.router", "--deployment", "d", stderr=asyncio.subprocess.PIPE, cwd=tmp_path
    )
    _, text = await process.communicate()
    assert process.returncode == 2
    assert b"--static-routes" in text


async def test_a_rolling_replacement_of_routers_fails_no_request(tmp_path: Path) -> None:
    """Clients use a list of routers as a Service would; each router is replaced in turn under load."""
    async with Upstream(healthy) as a, Upstream(healthy) as b:
        with ExitStack() as stack:

            async def start(name: str) -> RouterProcess:
                folder = tmp_path / name
                folder.mkdir()
                ends = [at(a.port), at(b.port)]
                router = stack.enter_context(router_process(folder, ends, "--drain-seconds", "0.8"))
                await until_ready(router)
                return router

            service = [await start("first")]
            results: list[Response] = []
            stop = asyncio.Event()
            load = [asyncio.create_task(keep_asking(service, results, stop)) for _ in range(4)]
            for name in ("second", "third"):
                service.append(await start(name))
                seen = len(results)
                await until(lambda seen=seen: len(results) > seen + 40, 10)  # type: ignore[misc]  # bound default
                leaving = service[0]
                leaving.terminate()
                # New connections still reach the old router until the Service has noticed.
                await asyncio.sleep(0.3)
                service.remove(leaving)
                assert await asyncio.to_thread(leaving.process.wait, 5) == 0
            stop.set()
            await asyncio.gather(*load)
        assert {(response.status, response.complete) for response in results} == {(200, True)}


async def keep_asking(service: list[RouterProcess], results: list[Response], stop: asyncio.Event) -> None:
    while not stop.is_set():
        async with Client(service[len(results) % len(service)].port) as client:
            for _ in range(20):
                await client.send(post(STREAM if len(results) % 2 else PLAIN))
                response = await client.response()
                results.append(response)
                if response.header("connection") == "close" or stop.is_set():
                    break


async def test_memory_holds_still_under_unique_prompts_and_churn(tmp_path: Path) -> None:
    async with Upstream(healthy) as a, Upstream(healthy) as b:
        with router_process(tmp_path, [at(a.port), at(b.port)]) as router:
            await until_ready(router)
            await burst(router, 300)
            before = router.resident_bytes()
            series = len(router.admin("/metrics").splitlines())
            for turn in range(5):
                router.write([at(a.port, f"rev{turn}"), at(b.port, f"rev{turn}")])
                await until(lambda: router.report().epoch == router.epoch)
                await burst(router, 300)
            assert router.resident_bytes() - before < 8 * 1024 * 1024
            assert len(router.admin("/metrics").splitlines()) == series


async def burst(router: RouterProcess, requests: int) -> None:
    async with Client(router.port) as client:
        for number in range(requests):
            body = b'{"model":"m","user":"%d","prompt":"%b"}' % (number, b"x" * 2000)
            await client.send(post(body, headers=f"x-forebay-session: s{number}\r\n"))
            assert (await client.response()).status == 200


def test_a_flood_of_connections_beyond_the_limit_is_told_to_come_back(tmp_path: Path) -> None:
    with router_process(tmp_path, [], "--max-connections", "3") as router:
        held = [http.client.HTTPConnection("127.0.0.1", router.port) for _ in range(3)]
        for connection in held:
            connection.connect()
        eventually(lambda: router.metric("forebay_router_connections") == 3, 5, "three connections", 0.05)
        extra = http.client.HTTPConnection("127.0.0.1", router.port)
        extra.request("GET", "/health")
        assert extra.getresponse().status == 503
        for connection in held:
            connection.close()
        eventually(lambda: router.metric("forebay_router_connections") == 0, 5, "connections to end", 0.05)
        extra = http.client.HTTPConnection("127.0.0.1", router.port)
        extra.request("GET", "/health")
        assert extra.getresponse().status == 200
