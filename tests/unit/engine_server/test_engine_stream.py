"""A stream that nobody reads is given up in time."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from forebay.contract.errors import Cancelled
from forebay.engine.server.stream import EventStream


async def test_a_client_that_does_not_read_makes_the_write_time_out() -> None:
    outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def endless(request: web.Request) -> web.StreamResponse:
        stream = EventStream(request, 0.2)
        try:
            while True:
                await stream.send(b"x" * 65536)
        except Cancelled as error:
            outcome.set_result(error.message)
            raise
        return stream.response

    app = web.Application()
    app.router.add_get("/", endless)
    async with TestClient(TestServer(app), read_bufsize=1024) as client:
        response = await client.get("/")
        assert await asyncio.wait_for(outcome, 20) == "the client does not read its stream"
        with pytest.raises(Exception, match="payload"):
            await response.read()
