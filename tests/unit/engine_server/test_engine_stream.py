"""A stream that nobody reads is given up in time."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from forebay.engine.server.generate import write_in_time


async def test_a_client_that_does_not_read_makes_the_write_time_out() -> None:
    outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await write_in_time(response, b"x" * 65536, 0.2)
        except TimeoutError:
            outcome.set_result("timed out")
            raise
        return response

    app = web.Application()
    app.router.add_get("/", endless)
    async with TestClient(TestServer(app), read_bufsize=1024) as client:
        response = await client.get("/")
        assert await asyncio.wait_for(outcome, 20) == "timed out"
        with pytest.raises(Exception, match="payload"):
            await response.read()
