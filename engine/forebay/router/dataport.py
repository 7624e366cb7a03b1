"""The data port: one protocol object for each client connection.

Requests are answered one at a time and in order, also when a client sends several at once. The connection is read while
an answer is under way, so a client that leaves is noticed in every phase; end of input counts as leaving. A refused
request ends its connection, after input has been drained for a moment so that the client can read why.
"""

import asyncio
from collections import deque
from typing import cast

from forebay.router import answers
from forebay.router.answers import Answer
from forebay.router.exchange import Exchange
from forebay.router.gateway import RETRY_AFTER_S, Admission, Gateway
from forebay.router.request import Rejected, Request, RequestLimits, RequestReader, Screened, Stage

HIGH_WATER_BYTES = 256 * 1024
MAX_PIPELINED = 16
"""Requests read ahead on one connection before reading pauses."""
LINGER_S = 2.0
LINGER_BYTES = 16 * 1024 * 1024
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(asyncio.Protocol):
    """One client connection."""

    __slots__ = (
        "_active",
        "_advancing",
        "_ended_s",
        "_ending",
        "_gateway",
        "_linger_bytes",
        "_paused_since_s",
        "_queue",
        "_reader",
        "_reading",
        "_refusal",
        "_request",
        "_since_s",
        "_transport",
    )

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self._gateway = gateway
        self._transport: asyncio.Transport | None = None
        limits = RequestLimits(settings.max_head_bytes, settings.max_body_bytes)
        self._reader = RequestReader(limits, self._on_head, self._on_request)
        self._queue: deque[Request] = deque()
        self._reading: Request | None = None
        self._request: Request | None = None
        self._active: Exchange | None = None
        self._advancing = False
        self._refusal: Answer | None = None
        self._ending = False
        self._linger_bytes = LINGER_BYTES
        self._ended_s = 0.0
        self._paused_since_s: float | None = None
        self._since_s = 0.0

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected; beyond the limit it is told to come back."""
        gateway = self._gateway
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._since_s = gateway.now()
        full = len(gateway.connections) >= gateway.settings.max_connections
        gateway.connections.add(self)
        if full:
            gateway.metrics.rejected.inc("limit")
            text = "Too many connections; try again soon."
            self._refuse(answers.error(503, text, "overloaded", retry_after_s=RETRY_AFTER_S))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (why it ended changes nothing)
        """The client left, or the answer ended the connection."""
        gateway = self._gateway
        gateway.connections.discard(self)
        active, self._active = self._active, None
        if active is not None:
            active.cancel()
        for request in (self._request, self._reading, *self._queue):
            if request is not None:
                self._let_go(request)
        self._queue.clear()
        self._transport = None

    def eof_received(self) -> bool:
        """The client closed its side; nobody waits for an answer."""
        return False

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._ending or self._refusal is not None:
            self._linger_bytes -= len(data)
            if self._linger_bytes < 0:
                self._abort()
            return
        stage = self._reader.stage
        try:
            self._reader.feed(data)
        except Rejected as refusal:
            self._refusal = refusal.answer
            if not isinstance(refusal, Screened):
                self._gateway.metrics.rejected.inc("malformed")
        if stage is not self._reader.stage:
            self._since_s = self._gateway.now()
        if self._active is None:
            self._advance()
        if len(self._queue) >= MAX_PIPELINED and self._transport is not None:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._paused_since_s = self._gateway.now()
        if self._active is not None:
            self._active.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._paused_since_s = None
        if self._active is not None:
            self._active.resume()
        else:
            self._advance()

    # Called by the reader.

    def _on_head(self, request: Request) -> Answer | None:
        gateway = self._gateway
        if not request.request_id:
            request.set_request_id(gateway.new_id().encode())
        answer = gateway.screen(request)
        if answer is None and request.has_body:
            self._reading = request
            request.held_bytes = request.content_length or 0
            gateway.hold_body(request.held_bytes)
            if request.expects_continue and not request.http_10 and self._active is None and not self._queue:
                self.send(CONTINUE)
                request.expects_continue = False
        return answer

    def _on_request(self, request: Request) -> None:
        self._reading = None
        if len(request.body) != request.held_bytes:
            self._gateway.hold_body(len(request.body) - request.held_bytes)
            request.held_bytes = len(request.body)
        self._queue.append(request)

    # Called by the exchange.

    def send(self, data: bytes) -> None:
        """Queue bytes for the client."""
        if self._transport is not None:
            self._transport.write(data)

    def answered(self, answer: Answer) -> None:
        """Give this answer to the request under way, and go on."""
        request = self._request
        assert request is not None  # noqa: S101 (an answer has a request)
        close = not request.keep_alive or self._gateway.draining
        head_only = request.method == b"HEAD"
        self.send(answer.render(request_id=request.request_id, close=close, head_only=head_only))
        self.finished(close=close)

    def finished(self, *, close: bool) -> None:
        """The answer is complete; the next request begins, or the connection ends."""
        self._active = None
        self._finish_request()
        if close:
            self._close()
        else:
            self._advance()

    def cut(self) -> None:
        """The answer ends here, incomplete."""
        self._active = None
        self._finish_request()
        self._close()

    # Called by the gateway.

    def check(self, now_s: float) -> None:
        """Act on deadlines: slow readers, slow senders, idle and ending connections."""
        stall_s = self._gateway.settings.client_stall_timeout_s
        transport = self._transport
        if self._ending:
            unsent = transport is not None and transport.get_write_buffer_size() > 0
            if now_s >= self._ended_s + (stall_s if unsent else LINGER_S):
                self._abort()
        elif self._paused_since_s is not None:
            if now_s - self._paused_since_s > stall_s:
                self._abort()
        elif self._request is None:
            self._check_input(now_s - self._since_s)

    def close_if_idle(self) -> None:
        """End the connection if no request is on it."""
        if self._request is None and not self._queue and self._reader.stage is Stage.IDLE:
            self._close()

    def _check_input(self, waited_s: float) -> None:
        settings = self._gateway.settings
        match self._reader.stage:
            case Stage.HEAD if waited_s > settings.header_timeout_s:
                self._time_out("The request head did not arrive in time.")
            case Stage.BODY if waited_s > settings.body_timeout_s:
                self._time_out("The request body did not arrive in time.")
            case Stage.IDLE if waited_s > settings.idle_timeout_s:
                self._close()
            case _:
                pass

    def _time_out(self, message: str) -> None:
        self._gateway.metrics.rejected.inc("timeout")
        self._refuse(answers.error(408, message, "request_timeout"))

    # The order of requests.

    def _advance(self) -> None:
        """Begin waiting requests until one is under way at an engine; answers given at once do not nest."""
        if self._advancing:
            return
        self._advancing = True
        while self._queue and self._request is None and self._paused_since_s is None and not self._ending:
            request = self._request = self._queue.popleft()
            self._begin(request)
        self._advancing = False
        if self._request is not None or self._queue or self._ending or self._paused_since_s is not None:
            return
        if self._refusal is not None:
            self._refuse(self._refusal)
            return
        transport, reading = self._transport, self._reading
        if transport is not None and not transport.is_reading() and not transport.is_closing():
            transport.resume_reading()
        if reading is not None and reading.expects_continue and not reading.http_10:
            reading.expects_continue = False
            self.send(CONTINUE)

    def _begin(self, request: Request) -> None:
        admission = request.answer or self._gateway.admit(request)
        if isinstance(admission, Admission):
            self._active = Exchange(self._gateway, self, request, admission)
            self._active.start()
        else:
            self._gateway.answered_here(request.path, admission)
            self.answered(admission)

    def _finish_request(self) -> None:
        if self._request is not None:
            self._let_go(self._request)
            self._request = None
        self._since_s = self._gateway.now()

    def _let_go(self, request: Request) -> None:
        self._gateway.hold_body(-request.held_bytes)
        request.held_bytes = 0

    # The end of the connection.

    def _refuse(self, answer: Answer) -> None:
        """Answer and end: say it, close our side, and drain the client's for a moment so that it can read."""
        self._refusal = None
        if self._reading is not None:
            self._let_go(self._reading)
        self._gateway.answered_here(b"", answer)
        self.send(answer.render(request_id=b"", close=True, head_only=False))
        self._ending = True
        self._ended_s = self._gateway.now()
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def _close(self) -> None:
        """Send what is queued and close."""
        self._ending = True
        self._ended_s = self._gateway.now()
        if self._transport is not None:
            self._transport.close()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
