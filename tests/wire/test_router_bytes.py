"""What goes through the router goes through unchanged: bodies, streams, headers and framing, byte for byte."""

import asyncio
import zlib

import pytest

from fault_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    Client,
    Served,
    Upstream,
    ask,
    chunk,
    header,
    healthy,
    post,
    reply,
)
from router_build import REVISION, RunningRouter, endpoint, on_uvloop

ODD_BODY = (
    '{"model":"m","temperature":0.70,"n":12345678901234567890123,"x":{"unknown":[1.0,1e300]},"é":"\\u00e9 ✓"}'.encode()
)
EVENTS = [
    b": a comment\n\n",
    b'data: {"t": "caf\xc3\xa9 \xf0\x9f\x98\x80"}\n\n',
    b"event: x\r\ndata: crlf\r\n\r\n",
    b"data: no space\ndata: two lines\n\n",
    b"data: [DONE]\n\n",
]


@on_uvloop
async def test_a_request_reaches_the_engine_with_its_own_bytes_and_headers() -> None:
    async with Upstream(healthy) as up, RunningRouter([endpoint("a", up.port)]) as router:
        headers = (
            "X-Custom: One  Two\r\nx-custom: again\r\nUser-Agent: t/1\r\nAuthorization: Bearer k\r\nAccept: */*\r\n"
            "Connection: keep-alive, X-Hop\r\nX-Hop: secret\r\nKeep-Alive: 5\r\nTE: trailers\r\nX-Request-Id: mine\r\n"
        )
        response = await ask(router.port, post(ODD_BODY, "/v1/chat/completions?a=%20b", headers))
        assert response.status == 200
        [served] = up.requests
        assert served.body == ODD_BODY
        assert served.head == (
            b"POST /v1/chat/completions?a=%%20b HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
            b"X-Custom: One  Two\r\nx-custom: again\r\nUser-Agent: t/1\r\nAuthorization: Bearer k\r\nAccept: */*\r\n"
            b"X-Request-Id: mine\r\ncontent-length: %d\r\n\r\n" % len(ODD_BODY)
        )


@on_uvloop
async def test_a_response_head_keeps_its_lines_and_gains_only_the_routers_own() -> None:
    async def script(served: Served) -> None:
        await served.send(
            b"HTTP/1.1 418 I'm a Teapot\r\nX-A: 1\r\nSet-Cookie: a\r\nset-cookie: b\r\nConnection: keep-alive\r\n"
            b"Keep-Alive: timeout=5\r\nX-Forebay-Revision: forged\r\nContent-Length: 2\r\n\r\nhi"
        )

    async with Upstream(script) as up, RunningRouter([endpoint("pod-a", up.port)]) as router:
        response = await ask(router.port, post(b'{"model":"m"}'))
        assert response.head == (
            b"HTTP/1.1 418 I'm a Teapot\r\nX-A: 1\r\nSet-Cookie: a\r\nset-cookie: b\r\nContent-Length: 2\r\n"
            b"x-request-id: test-0\r\nx-forebay-revision: %b\r\nx-forebay-endpoint: pod-a\r\n\r\n" % REVISION.encode()
        )
        assert response.body == b"hi"
        assert header(up.requests[0].head, b"x-request-id") == b"test-0"


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100_000])
@on_uvloop
async def test_a_stream_is_relayed_byte_for_byte_however_it_is_cut_into_packets(step: int) -> None:
    wire = b"".join(chunk(event) for event in EVENTS) + LAST_CHUNK

    async def script(served: Served) -> None:
        await served.send(SSE_HEAD)
        for start in range(0, len(wire), step):
            await served.send(wire[start : start + step])

    async with Upstream(script) as up, RunningRouter([endpoint("a", up.port)]) as router:
        async with Client(router.port) as client:
            for _ in range(2):
                await client.send(post(b'{"model":"m","stream":true}'))
                response = await client.response()
                assert response.complete
                assert response.body == b"".join(EVENTS)
        assert up.connections == 1


@on_uvloop
async def test_whole_chunks_keep_the_engines_own_framing() -> None:
    async def script(served: Served) -> None:
        await served.send(SSE_HEAD + b"005;ext=1\r\nhello\r\n" + LAST_CHUNK)

    async with Upstream(script) as up, RunningRouter([endpoint("a", up.port)]) as router, Client(router.port) as client:
        await client.send(post(b'{"model":"m"}'))
        await client.head()
        assert await client.reader.readuntil(b"0\r\n\r\n") == b"005;ext=1\r\nhello\r\n0\r\n\r\n"


@on_uvloop
async def test_three_pipelined_requests_are_answered_in_order() -> None:
    async def script(served: Served) -> None:
        await asyncio.sleep(0.02 if b"first" in served.body else 0)
        await served.send(reply(served.body))

    async with Upstream(script) as up, RunningRouter([endpoint("a", up.port)]) as router, Client(router.port) as client:
        bodies = [b'{"model":"m","t":"%b"}' % name for name in (b"first", b"second", b"third")]
        await client.send(b"".join(post(body) for body in bodies) + b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")
        for body in bodies:
            assert (await client.response()).body == body
        assert (await client.response()).body == b'{"status":"ok"}'


@on_uvloop
async def test_two_thousand_pipelined_local_requests_do_not_nest() -> None:
    async with RunningRouter([]) as router, Client(router.port) as client:
        await client.send(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n" * 2000)
        for _ in range(2000):
            assert (await client.response()).status == 200


@pytest.mark.parametrize("step", [1, 5, 100_000])
@on_uvloop
async def test_a_chunked_request_body_arrives_whole_and_with_a_length(step: int) -> None:
    body = b'{"model":"m","text":"' + b"x" * 50 + b'"}'
    wire = (
        b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunk(body[:7])
        + chunk(body[7:20])
        + chunk(body[20:])
        + b"0\r\nX-Trailer: dropped\r\n\r\n"
    )
    async with (
        Upstream(healthy) as up,
        RunningRouter([endpoint("a", up.port)]) as router,
        Client(router.port) as client,
    ):
        for start in range(0, len(wire), step):
            await client.send(wire[start : start + step])
        assert (await client.response()).status == 200
        assert up.requests[0].body == body
        assert header(up.requests[0].head, b"transfer-encoding") is None
        assert b"trailer" not in up.requests[0].head.lower()


@on_uvloop
async def test_a_client_that_expects_100_continue_gets_it_before_its_body() -> None:
    body = b'{"model":"m"}'
    head = post(body, headers="Expect: 100-continue\r\n")[: -len(body)]
    async with (
        Upstream(healthy) as up,
        RunningRouter([endpoint("a", up.port)]) as router,
        Client(router.port) as client,
    ):
        await client.send(head)
        assert (await client.response()).status == 100
        await client.send(body)
        assert (await client.response()).status == 200
        assert header(up.requests[0].head, b"expect") is None


@on_uvloop
async def test_head_204_and_304_have_no_body_and_keep_the_connection() -> None:
    async def script(served: Served) -> None:
        if served.head.startswith(b"HEAD"):
            await served.send(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n")
        else:
            await served.send(b"HTTP/1.1 %b No\r\n\r\n" % served.path[-3:])

    async with Upstream(script) as up, RunningRouter([endpoint("a", up.port)]) as router, Client(router.port) as client:
        await client.send(b"HEAD /v1/x HTTP/1.1\r\nHost: t\r\n\r\n")
        response = await client.response(to_head=True)
        assert response.header("content-length") == "999"
        for status in (204, 304):
            await client.send(b"GET /v1/%d HTTP/1.1\r\nHost: t\r\n\r\n" % status)
            assert (await client.response()).status == status
        assert up.connections == 1


@on_uvloop
async def test_an_http_10_client_gets_plain_bytes_and_a_close() -> None:
    async with (
        Upstream(healthy) as up,
        RunningRouter([endpoint("a", up.port)]) as router,
        Client(router.port) as client,
    ):
        body = b'{"model":"m","stream":true}'
        await client.send(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        response = await client.response()
        assert response.header("transfer-encoding") is None
        assert response.body.endswith(b"data: [DONE]\n\n")
        assert response.body.startswith(b'data: {"n": 0}\n\n')


@on_uvloop
async def test_an_answer_that_ends_with_the_connection_is_given_an_end_the_client_can_see() -> None:
    async def script(served: Served) -> None:
        await served.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n", b"until ", b"the end")
        served.close()

    async with Upstream(script) as up, RunningRouter([endpoint("a", up.port)]) as router:
        response = await ask(router.port, post(b'{"model":"m"}'))
        assert response.complete
        assert response.body == b"until the end"
        assert response.header("transfer-encoding") == "chunked"


@on_uvloop
async def test_informational_responses_are_skipped() -> None:
    async def script(served: Served) -> None:
        await served.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + reply(b"{}"))

    async with Upstream(script) as up, RunningRouter([endpoint("a", up.port)]) as router:
        response = await ask(router.port, post(b'{"model":"m"}'))
        assert (response.status, response.body) == (200, b"{}")


@on_uvloop
async def test_an_offer_to_upgrade_is_ignored_and_the_connection_goes_on() -> None:
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n"
    async with (
        Upstream(healthy) as up,
        RunningRouter([endpoint("a", up.port)]) as router,
        Client(router.port) as client,
    ):
        for _ in range(2):
            await client.send(post(b'{"model":"m"}', headers=upgrade))
            assert (await client.response()).status == 200
        for served in up.requests:
            assert header(served.head, b"upgrade") is None
            assert header(served.head, b"http2-settings") is None


@on_uvloop
async def test_a_large_body_passes_both_ways_with_a_slow_reader() -> None:
    payload = bytes(range(256)) * 4096 * 12
    body = b'{"model":"m","blob":"' + b"y" * 3_000_000 + b'"}'

    async def script(served: Served) -> None:
        served.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(payload))
        served.writer.write(payload)
        await served.writer.drain()

    async with Upstream(script) as up, RunningRouter([endpoint("a", up.port)]) as router, Client(router.port) as client:
        await client.send(post(body))
        await client.head()
        got = 0
        crc = 0
        while got < len(payload):
            data = await client.reader.read(65536)
            assert data
            got += len(data)
            crc = zlib.crc32(data, crc)
            await asyncio.sleep(0)
        assert crc == zlib.crc32(payload)
        assert up.requests[0].body == body


@on_uvloop
async def test_a_client_that_does_not_read_holds_back_the_engine() -> None:
    sent = 0
    block = chunk(b"z" * 65536)

    async def script(served: Served) -> None:
        nonlocal sent
        await served.send(SSE_HEAD)
        while True:
            served.writer.write(block)
            await served.writer.drain()
            sent += len(block)

    async with Upstream(script) as up, RunningRouter([endpoint("a", up.port)]) as router:
        async with Client(router.port) as client:
            await client.send(post(b'{"model":"m","stream":true}'))
            await client.head()
            before = -1
            end = asyncio.get_running_loop().time() + 10
            while before != sent and asyncio.get_running_loop().time() < end:
                before = sent
                await asyncio.sleep(0.3)
            assert before == sent, "the engine was never held back"
            assert sent < 64 * 1024 * 1024
        await router.idle()


@on_uvloop
async def test_a_connection_on_which_the_engine_sent_unasked_bytes_is_not_used_again() -> None:
    async def script(served: Served) -> None:
        await served.send(reply(b"{}") + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")

    async with Upstream(script) as up, RunningRouter([endpoint("a", up.port)]) as router, Client(router.port) as client:
        for _ in range(3):
            await client.send(post(b'{"model":"m"}'))
            assert (await client.response()).body == b"{}"
        assert up.connections == 3


@on_uvloop
async def test_bytes_that_come_while_a_connection_is_idle_end_it() -> None:
    late = asyncio.Event()

    async def script(served: Served) -> None:
        await served.send(reply(b"{}"))
        if len(up.requests) == 1:
            await served.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")
            late.set()

    async with Upstream(script) as up, RunningRouter([endpoint("a", up.port)]) as router, Client(router.port) as client:
        await client.send(post(b'{"model":"m"}'))
        assert (await client.response()).body == b"{}"
        await late.wait()
        await client.send(post(b'{"model":"m"}'))
        assert (await client.response()).body == b"{}"


@on_uvloop
async def test_idle_connections_are_used_again_last_in_first_out() -> None:
    async with Upstream(healthy) as up, RunningRouter([endpoint("a", up.port)]) as router:
        await asyncio.gather(*(ask(router.port, post(b'{"model":"m"}')) for _ in range(5)))
        opened = up.connections
        for _ in range(10):
            await ask(router.port, post(b'{"model":"m"}'))
        assert up.connections == opened
        assert len({served.connection for served in up.requests[-10:]}) == 1
