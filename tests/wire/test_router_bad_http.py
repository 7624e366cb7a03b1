"""Bad requests at the router: each gets its 4xx with a reason, none reaches an engine, and the router goes on."""

import asyncio
import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from fault_upstream import Client, Served, Upstream, ask, healthy, post
from router_build import RunningRouter, endpoint, keys_directory, on_uvloop, until

HOST = b"Host: t\r\n"
LINE = b"POST /v1/completions HTTP/1.1\r\n"
BODY = b'{"model":"m"}'
END = b"\r\n"


@dataclass(frozen=True)
class Bad:
    """Bytes on the wire and the status they get; `says` is part of the message."""

    name: str
    wire: bytes
    status: int
    says: str = ""


def sized(*lines: bytes, body: bytes = BODY) -> bytes:
    """A POST with these header lines, then the body without a length of its own."""
    return LINE + HOST + b"".join(line + END for line in lines) + END + body


BAD = [
    Bad("not HTTP", b"hello there\r\n\r\n", 400),
    Bad("TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    Bad("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    Bad("HTTP/0.9", b"GET /v1/models\r\n\r\n", 400),
    Bad("HTTP/3.0", b"GET /v1/models HTTP/3.0\r\n" + HOST + END, 400),
    Bad("unknown method", b"BREW /v1/completions HTTP/1.1\r\n" + HOST + END, 400),
    Bad("method not allowed", b"TRACE /v1/completions HTTP/1.1\r\n" + HOST + END, 405),
    Bad("CONNECT", b"CONNECT engine:8000 HTTP/1.1\r\n" + HOST + END, 405),
    Bad("no host", b"GET /v1/models HTTP/1.1\r\n\r\n", 400, "host"),
    Bad("two hosts", b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "host"),
    Bad("asterisk target", b"OPTIONS * HTTP/1.1\r\n" + HOST + END, 400),
    Bad("space in target", b"GET /v1/a b HTTP/1.1\r\n" + HOST + END, 400),
    Bad("NUL in target", b"GET /v1/\x00 HTTP/1.1\r\n" + HOST + END, 400),
    Bad("high byte in target", b"GET /v1/\xc3\xa9 HTTP/1.1\r\n" + HOST + END, 400),
    Bad("NUL in header", b"GET /v1/models HTTP/1.1\r\n" + HOST + b"x: a\x00b\r\n\r\n", 400),
    Bad("bare CR in header", b"GET /v1/models HTTP/1.1\r\n" + HOST + b"x: a\rb\r\n\r\n", 400),
    Bad("bare LF", b"GET /v1/models HTTP/1.1\nHost: t\n\n", 400),
    Bad("space before colon", b"GET /v1/models HTTP/1.1\r\n" + HOST + b"x : a\r\n\r\n", 400),
    Bad("no colon", b"GET /v1/models HTTP/1.1\r\n" + HOST + b"broken\r\n\r\n", 400),
    Bad("empty header name", b"GET /v1/models HTTP/1.1\r\n" + HOST + b": a\r\n\r\n", 400),
    Bad("folded header", b"GET /v1/models HTTP/1.1\r\n" + HOST + b"x: a\r\n b\r\n\r\n", 400),
    Bad("length and chunked", sized(b"Content-Length: 13", b"Transfer-Encoding: chunked"), 400),
    Bad("chunked and length", sized(b"Transfer-Encoding: chunked", b"Content-Length: 13", body=b"0\r\n\r\n"), 400),
    Bad("two lengths", sized(b"Content-Length: 13", b"Content-Length: 14"), 400),
    Bad("the same length twice", sized(b"Content-Length: 13", b"Content-Length: 13"), 400),
    Bad("list of lengths", sized(b"Content-Length: 13, 13"), 400),
    Bad("negative length", sized(b"Content-Length: -1"), 400),
    Bad("signed length", sized(b"Content-Length: +13"), 400),
    Bad("hexadecimal length", sized(b"Content-Length: 0xd"), 400),
    Bad("length with underscore", sized(b"Content-Length: 1_3"), 400),
    Bad("empty length", sized(b"Content-Length: "), 400),
    Bad("length beyond 64 bits", sized(b"Content-Length: 99999999999999999999999"), 400),
    Bad("chunked twice", sized(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"), 400),
    Bad("chunked not last", sized(b"Transfer-Encoding: chunked, gzip", body=b"0\r\n\r\n"), 400),
    Bad("gzip, chunked", sized(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), 400),
    Bad("xchunked", sized(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"), 400),
    Bad("chunked by HTTP/1.0", b"POST /v1/x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    Bad("chunk size not hexadecimal", sized(b"Transfer-Encoding: chunked", body=b"zz\r\n{}\r\n0\r\n\r\n"), 400),
    Bad("chunk size with 0x", sized(b"Transfer-Encoding: chunked", body=b"0x2\r\n{}\r\n0\r\n\r\n"), 400),
    Bad("chunk longer than its size", sized(b"Transfer-Encoding: chunked", body=b"1\r\n{}\r\n0\r\n\r\n"), 400),
    Bad("chunk size beyond 64 bits", sized(b"Transfer-Encoding: chunked", body=b"fffffffffffffffff\r\n"), 400),
    Bad("expects something else", sized(b"Content-Length: 13", b"Expect: 200-ok"), 417),
    Bad("huge header", b"GET /v1/models HTTP/1.1\r\n" + HOST + b"x: " + b"y" * 40_000 + b"\r\n\r\n", 431),
    Bad("huge target", b"GET /v1/" + b"y" * 40_000 + b" HTTP/1.1\r\n" + HOST + END, 431),
    Bad("many headers", b"GET /v1/models HTTP/1.1\r\n" + HOST + b"x: y\r\n" * 300 + END, 431),
    Bad("announced body too large", sized(b"Content-Length: 99999999", body=b""), 413),
    Bad("compressed body", sized(b"Content-Length: 13", b"Content-Encoding: gzip"), 415),
    Bad("unknown path", b"GET /admin HTTP/1.1\r\n" + HOST + END, 404),
    Bad("metrics of an engine", b"GET /metrics HTTP/1.1\r\n" + HOST + END, 404),
    Bad("control path", post(b"{}", "/v1/forebay/drain"), 404),
    Bad("control path, encoded", post(b"{}", "/v1/%66orebay/drain"), 404),
    Bad("control path, dots", post(b"{}", "/v1/x/../forebay/drain"), 404),
    Bad("control path, double slash", post(b"{}", "/v1//forebay/drain"), 404),
    Bad("control path, backslash", post(b"{}", "/v1/..\\forebay/drain"), 404),
    Bad("control path, absolute", post(b"{}", "http://t/v1/forebay/drain"), 404),
    Bad("not JSON", post(b"{model:"), 400, "JSON"),
    Bad("trailing bytes", post(b'{"model":"m"} x'), 400, "JSON"),
    Bad("invalid UTF-8", post(b'{"model":"\xff"}'), 400, "JSON"),
    Bad("NUL bytes", post(b'\x00{"model":"m"}'), 400, "JSON"),
    Bad("NaN", post(b'{"model":"m","x":NaN}'), 400, "JSON"),
    Bad("deep nesting", post(b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), 400, "JSON"),
    Bad("an array", post(b"[1]"), 400, "object"),
    Bad("a string", post(b'"m"'), 400, "object"),
    Bad("model is a number", post(b'{"model":7}'), 400, "model"),
    Bad("model is a list", post(b'{"model":["m"]}'), 400, "model"),
    Bad("model is unknown", post(b'{"model":"gpt-9"}'), 404, "gpt-9"),
    Bad("model is empty", post(b'{"model":""}'), 404),
    Bad("model with NUL", post(b'{"model":"m\\u0000"}'), 404),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name.replace(" ", "-"))
@on_uvloop
async def test_a_bad_request_is_refused_with_a_reason_and_never_reaches_an_engine(bad: Bad) -> None:
    async with Upstream(healthy) as up, RunningRouter([endpoint("a", up.port)]) as router:
        async with Client(router.port) as client:
            await client.send(bad.wire)
            response = await client.response()
        assert response.status == bad.status, response.body
        error = json.loads(response.body)["error"]
        assert error["message"]
        assert bad.says.lower() in error["message"].lower()
        assert "Traceback" not in error["message"]
        assert not up.requests
        assert (await ask(router.port, post(BODY))).status == 200


@on_uvloop
async def test_a_smuggled_request_behind_a_refused_one_is_never_answered() -> None:
    smuggled = post(b'{"model":"m","stream":true}')
    wire = sized(b"Content-Length: 4", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n") + smuggled
    async with (
        Upstream(healthy) as up,
        RunningRouter([endpoint("a", up.port)]) as router,
        Client(router.port) as client,
    ):
        await client.send(wire)
        assert (await client.response()).status == 400
        assert await client.closed()
        assert not up.requests


@on_uvloop
async def test_good_requests_before_a_bad_one_are_answered_first() -> None:
    async with (
        Upstream(healthy) as up,
        RunningRouter([endpoint("a", up.port)]) as router,
        Client(router.port) as client,
    ):
        await client.send(post(BODY) * 2 + b"broken\r\n\r\n")
        assert [(await client.response()).status for _ in range(3)] == [200, 200, 400]
        assert await client.closed()


@on_uvloop
async def test_a_slow_head_gets_408_and_a_silent_connection_is_closed() -> None:
    async with RunningRouter([], header_timeout_s=0.2, idle_timeout_s=0.4) as router:
        async with Client(router.port) as client:
            await client.send(b"POST /v1/comple")
            assert (await client.response()).status == 408
        async with Client(router.port) as client:
            assert await client.closed()


@on_uvloop
async def test_a_head_that_trickles_in_is_not_given_more_time() -> None:
    async with RunningRouter([], header_timeout_s=0.3) as router, Client(router.port) as client:
        answer = asyncio.create_task(client.response())
        for byte in b"GET /health HTTP/1.1\r\nHost: a-long-name.example\r\nx: y":
            if answer.done():
                break
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0.02)
        assert (await answer).status == 408


@on_uvloop
async def test_a_slow_body_gets_408() -> None:
    async with RunningRouter([], body_timeout_s=0.2) as router, Client(router.port) as client:
        await client.send(sized(b"Content-Length: 13", body=b'{"mod'))
        assert (await client.response()).status == 408
        await router.idle()


@on_uvloop
async def test_an_endless_head_is_refused_before_it_ends() -> None:
    async with RunningRouter([]) as router, Client(router.port) as client:
        await client.send(b"GET /health HTTP/1.1\r\nx: " + b"y" * 40_000)
        assert (await client.response()).status == 431


@on_uvloop
async def test_a_chunked_body_beyond_the_limit_is_refused_while_it_comes() -> None:
    async with RunningRouter([], max_body_bytes=1000) as router, Client(router.port) as client:
        await client.send(sized(b"Transfer-Encoding: chunked", body=b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\nx\r\n"))
        assert (await client.response()).status == 413
        await router.idle()


@on_uvloop
async def test_a_flood_of_tiny_chunks_and_of_trailers_is_refused() -> None:
    async with RunningRouter([], max_body_bytes=1000, max_head_bytes=1000) as router:
        async with Client(router.port) as client:
            await client.send(sized(b"Transfer-Encoding: chunked", body=b"1;" + b"e" * 500 + b"\r\nx\r\n"))
            await until(lambda: router.gateway.connections)
            for _ in range(40):
                client.writer.write(b"1;" + b"e" * 500 + b"\r\nx\r\n")
                await asyncio.sleep(0)
            assert (await client.response()).status == 413
        async with Client(router.port) as client:
            await client.send(
                sized(b"Transfer-Encoding: chunked", body=b"0\r\n" + b"t: yyyyyyyyyyyyyyyy\r\n" * 100 + END)
            )
            assert (await client.response()).status == 431


@on_uvloop
async def test_a_client_that_uploads_too_much_can_still_read_why() -> None:
    async with RunningRouter([], max_body_bytes=1000) as router, Client(router.port) as client:
        client.writer.write(sized(b"Content-Length: 8000000", body=b"x" * 8_000_000))
        assert (await client.response()).status == 413


@on_uvloop
async def test_bodies_held_at_one_time_are_bounded() -> None:
    async with RunningRouter([], max_buffered_bytes=1500) as router, Client(router.port) as first:
        await first.send(sized(b"Content-Length: 1000", body=b"x" * 999))
        await until(lambda: router.gateway.buffered_bytes == 1000)
        response = await ask(router.port, post(b'{"model":"m","x":"' + b"y" * 990 + b'"}'))
        assert (response.status, response.header("retry-after")) == (503, "1")
        first.writer.close()
        await router.idle()


@on_uvloop
async def test_a_key_is_needed_where_keys_are_set_and_changes_are_followed(tmp_path: Path) -> None:
    keys = keys_directory(tmp_path / "keys", alice="sk-alice", bob="sk-bob")
    async with Upstream(healthy) as up, RunningRouter([endpoint("a", up.port)], api_keys_dir=keys) as router:
        for header in (
            "",
            "Authorization: Bearer sk-eve\r\n",
            "Authorization: Basic sk-bob\r\n",
            "Authorization: \r\n",
        ):
            response = await ask(router.port, post(BODY, headers=header))
            assert (response.status, response.header("www-authenticate")) == (401, "Bearer")
        assert (await ask(router.port, b"GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n")).status == 401
        assert (await ask(router.port, b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")).status == 200
        assert (await ask(router.port, post(BODY, headers="Authorization: bearer sk-alice\r\n"))).status == 200
        (keys / "alice").unlink()
        (keys / "carol").write_text("sk-carol")
        router.gateway.keys.reload()
        assert (await ask(router.port, post(BODY, headers="Authorization: Bearer sk-alice\r\n"))).status == 401
        assert (await ask(router.port, post(BODY, headers="Authorization: Bearer sk-carol\r\n"))).status == 200
        for path in keys.iterdir():
            path.unlink()
        router.gateway.keys.reload()
        assert (await ask(router.port, post(BODY, headers="Authorization: Bearer sk-bob\r\n"))).status == 401
        keys.rmdir()
        router.gateway.keys.reload()
        assert (await ask(router.port, post(BODY))).status == 401


@on_uvloop
async def test_streams_of_one_key_are_bounded_and_given_back(tmp_path: Path) -> None:
    keys = keys_directory(tmp_path / "keys", alice="sk-alice", bob="sk-bob")
    stream = b'{"model":"m","stream":true}'
    alice, bob = "Authorization: Bearer sk-alice\r\n", "Authorization: Bearer sk-bob\r\n"
    changes: dict[str, object] = {"api_keys_dir": keys, "max_streams_per_key": 1}
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await release.wait()
        served.close()

    async with Upstream(script) as up, RunningRouter([endpoint("a", up.port)], None, **changes) as router:
        async with Client(router.port) as held:
            await held.send(post(stream, headers=alice))
            await until(lambda: bool(up.requests))
            response = await ask(router.port, post(stream, headers=alice))
            assert (response.status, response.header("retry-after")) == (429, "1")
            up.script = healthy
            assert (await ask(router.port, post(stream, headers=bob))).status == 200
            assert (await ask(router.port, post(BODY, headers=alice))).status == 200
        await router.idle()
        assert (await ask(router.port, post(stream, headers=alice))).status == 200


def mangled(chance: random.Random) -> bytes:
    """One to three requests with a few bytes dropped, doubled, replaced or cut off."""
    wire = bytearray(b"".join(chance.choice(SEEDS) for _ in range(chance.randint(1, 3))))
    for _ in range(chance.randint(0, 4)):
        place = chance.randrange(len(wire))
        match chance.randrange(4):
            case 0:
                del wire[place : place + chance.randint(1, 8)]
            case 1:
                wire[place:place] = wire[place : place + chance.randint(1, 20)]
            case 2:
                wire[place : place + 1] = chance.choice([b"\r\n", b"\n", b"\0", b":", b" ", b"\xff", b"0", b"\t"])
            case _:
                del wire[place:]
        if not wire:
            return b"\r\n"
    return bytes(wire)


SEEDS = [
    post(BODY),
    post(b'{"model":"m","stream":true}', headers="Expect: 100-continue\r\n"),
    sized(b"Transfer-Encoding: chunked", body=b"5\r\n" + BODY[:5] + b"\r\n8\r\n" + BODY[5:] + b"\r\n0\r\nT: x\r\n\r\n"),
    post(BODY, headers="Connection: Upgrade\r\nUpgrade: h2c\r\n"),
    b"GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n",
    b"HEAD /health HTTP/1.0\r\n\r\n",
    b"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
]


@on_uvloop
async def test_four_hundred_mangled_connections_raise_nothing_and_leave_nothing() -> None:
    chance = random.Random(3)
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    async with Upstream(healthy) as up, RunningRouter([endpoint("a", up.port)]) as router:
        for _ in range(400):
            wire = mangled(chance)
            async with Client(router.port) as client:
                place = chance.randrange(len(wire) + 1)
                await client.send(wire[:place])
                await asyncio.sleep(0)
                client.writer.write(wire[place:])
                if chance.random() < 0.5:
                    await asyncio.sleep(0.002)
        await until(lambda: not router.gateway.connections)
        await router.idle()
        assert (await ask(router.port, post(BODY))).status == 200
    assert unhandled == []
