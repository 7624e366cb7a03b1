"""The HTTP connection with what aiohttp leaves out: a deadline for the first head, and JSON for malformed requests.

aiohttp parses (strictly: both Content-Length and Transfer-Encoding, bad lengths and long headers are refused); here
such a refusal becomes an OpenAI-shaped body, and a client that sends its head too slowly gets 408. Later heads on a
kept-alive connection are bounded by aiohttp's keep-alive time. Built by `process.py`.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import http_exceptions, web

from forebay.engine.server.errors import Problem, problem_of_status

_log = logging.getLogger(__name__)


class GuardedConnection(web.RequestHandler):
    """One client connection. `on_malformed` is called for each request that could not be read."""

    def __init__(self, server: web.Server, *, head_seconds: float, on_malformed: Callable[[], None], **kw: Any) -> None:
        super().__init__(server, **kw)
        self._head_seconds = head_seconds
        self._on_malformed = on_malformed
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the deadline of the first head."""
        super().connection_made(transport)
        self._head_timer = asyncio.get_running_loop().call_later(self._head_seconds, self._head_is_late)

    def data_received(self, data: bytes) -> None:
        """Parse; the deadline ends with the first complete head."""
        super().data_received(data)
        if self._head_timer is not None and self._request_count > 0:
            self._head_timer.cancel()
            self._head_timer = None

    def connection_lost(self, exc: BaseException | None) -> None:
        """Drop the deadline with the connection."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().connection_lost(exc)

    def _head_is_late(self) -> None:
        self._head_timer = None
        transport = self.transport
        if transport is None or self._request_count > 0:
            return
        self._on_malformed()
        body = problem_of_status(408, f"no complete request head within {self._head_seconds:g} s").body()
        head = (
            "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        transport.write(head.encode() + body)
        self.force_close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to a request that could not be parsed or whose handler broke; always ends the connection."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already") from exc
        if status >= 500:
            _log.error("a request handler failed", exc_info=exc)
            problem = problem_of_status(status, "the engine could not answer this request")
        else:
            self._on_malformed()
            problem = _malformed(status, exc, message)
        response = problem.response()
        response.force_close()
        return response


def _malformed(status: int, exc: BaseException | None, message: str | None) -> Problem:
    if isinstance(exc, http_exceptions.LineTooLong):
        return problem_of_status(431, "the request line or a header is too long")
    lines = (message or "bad request").strip().splitlines()
    return problem_of_status(status, f"the request is malformed: {lines[0].rstrip(':') if lines else 'bad request'}")
