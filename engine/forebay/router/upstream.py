"""Connections to engines: a protocol without any policy, and a last-in-first-out pool for each endpoint.

An idle connection is used again for at most `IDLE_LIMIT_S`, far below the engines' keep-alive of 75 s, and is dropped
when the engine sends a byte nobody asked for. Everything a connection hears goes to the one exchange that holds it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from forebay.router.view import EndpointState

IDLE_LIMIT_S = 3.0
MAX_IDLE = 256
"""Idle connections kept for each endpoint."""


class UpstreamListener(Protocol):
    """Whoever holds a connection."""

    def on_connected(self, connection: "UpstreamConnection") -> None:
        """A new connection is ready and belongs to the listener."""

    def on_connect_failed(self, reason: str) -> None:
        """No connection could be made in time."""

    def on_data(self, data: bytes) -> None:
        """Bytes from the engine."""

    def on_lost(self, error: Exception | None) -> None:
        """The connection ended; None means the engine closed it in order."""


class UpstreamConnection(asyncio.Protocol):
    """One TCP connection to one endpoint."""

    __slots__ = ("idle_since_s", "listener", "on_unused_loss", "reused", "state", "transport")

    def __init__(self, state: EndpointState, on_unused_loss: Callable[["UpstreamConnection"], None]) -> None:
        self.state = state
        self.on_unused_loss = on_unused_loss
        self.listener: UpstreamListener | None = None
        self.transport: asyncio.Transport | None = None
        self.reused = False
        self.idle_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop; a byte on an idle connection makes it useless."""
        if self.listener is None:
            self.abort()
        else:
            self.listener.on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop, once."""
        listener, self.listener, self.transport = self.listener, None, None
        if listener is None:
            self.on_unused_loss(self)
        else:
            listener.on_lost(exc)

    def send(self, data: bytes) -> None:
        """Queue bytes to the engine; a lost connection reports through `on_lost`."""
        if self.transport is not None:
            self.transport.write(data)

    def abort(self) -> None:
        """End the connection now; its listener hears nothing more."""
        self.listener = None
        if self.transport is not None:
            self.transport.abort()

    def pause(self) -> None:
        """Stop reading: the client takes no more for now."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    @property
    def clean(self) -> bool:
        """Whether the connection is open and has sent all that was queued."""
        transport = self.transport
        return transport is not None and not transport.is_closing() and transport.get_write_buffer_size() == 0


class UpstreamPool:
    """Idle connections by endpoint, and the making of new ones."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connect_timeout_s: float) -> None:
        self._loop = loop
        self._connect_timeout_s = connect_timeout_s
        self._idle: dict[EndpointState, deque[UpstreamConnection]] = {}
        self.connects = 0

    def take(self, state: EndpointState, now_s: float) -> UpstreamConnection | None:
        """The most recently used idle connection that is young enough, or None."""
        idle = self._idle.get(state)
        while idle:
            connection = idle.pop()
            if connection.clean and now_s - connection.idle_since_s < IDLE_LIMIT_S:
                connection.reused = True
                return connection
            connection.abort()
        return None

    def give_back(self, connection: UpstreamConnection, now_s: float) -> None:
        """Keep a connection whose last answer was read to its end; others are aborted by their holder."""
        connection.listener = None
        if connection.state.terminating:
            connection.abort()
            return
        idle = self._idle.setdefault(connection.state, deque())
        if len(idle) >= MAX_IDLE:
            idle.popleft().abort()
        connection.idle_since_s = now_s
        idle.append(connection)

    def connect(self, state: EndpointState, listener: UpstreamListener) -> asyncio.Task[None]:
        """Open a connection for the listener; cancelling the task leaves nothing behind."""
        self.connects += 1
        return self._loop.create_task(self._connect(state, listener))

    def drop(self, state: EndpointState) -> None:
        """Close the idle connections of an endpoint that is gone."""
        for connection in self._idle.pop(state, ()):
            connection.abort()

    def sweep(self, now_s: float) -> None:
        """Close idle connections that are too old; the oldest are in front."""
        for idle in self._idle.values():
            while idle and now_s - idle[0].idle_since_s >= IDLE_LIMIT_S:
                idle.popleft().abort()

    def close(self) -> None:
        """Close all idle connections."""
        for state in list(self._idle):
            self.drop(state)

    async def _connect(self, state: EndpointState, listener: UpstreamListener) -> None:
        connection = UpstreamConnection(state, self._lost)
        endpoint = state.endpoint
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._loop.create_connection(lambda: connection, endpoint.host, endpoint.port)
        except TimeoutError:
            connection.abort()
            listener.on_connect_failed(f"no connection within {self._connect_timeout_s:g} s")
        except OSError as error:
            listener.on_connect_failed(str(error))
        except asyncio.CancelledError:
            connection.abort()
            raise
        else:
            if connection.transport is None:
                listener.on_connect_failed("the connection was closed at once")
            else:
                connection.listener = listener
                listener.on_connected(connection)

    def _lost(self, connection: UpstreamConnection) -> None:
        idle = self._idle.get(connection.state)
        if idle is not None and connection in idle:
            idle.remove(connection)
