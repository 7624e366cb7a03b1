"""A raw-socket upstream that does exactly what a test's script says, and a raw-socket client.

The script of an upstream gets each request as it came (bytes and all) and writes bytes, waits, resets or closes. What
the upstream received, and when it noticed that its peer was gone, is kept for assertions.
"""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType


@dataclass
class Served:
    """One request at the upstream: its head, its body and its connection."""

    head: bytes
    body: bytes
    connection: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *parts: bytes) -> None:
        """Write the parts, each in its own packet where the kernel allows."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def gone(self) -> None:
        """Wait until the peer ends the connection."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        """End the connection in order."""
        self.writer.close()

    @property
    def path(self) -> bytes:
        """The request target."""
        return self.head.split(b" ", 2)[1]


Script = Callable[[Served], Awaitable[None]]


@dataclass
class Upstream:
    """Serves `script` on a free loopback port; the script may be replaced at any time."""

    script: Script
    requests: list[Served] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    async def __aenter__(self) -> "Upstream":
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = header(head, b"content-length")
                body = await reader.readexactly(int(length)) if length else b""
                served = Served(head, body, number, reader, writer)
                self.requests.append(served)
                await self.script(served)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            self._tasks.discard(task)
            writer.close()


def header(head: bytes, name: bytes) -> bytes | None:
    """The value of a header in a raw head."""
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.lower() == name:
            return value.strip()
    return None


def reply(body: bytes, *, status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    """A response with a content-length."""
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (
        status,
        headers,
        len(body),
        body,
    )


def chunk(data: bytes) -> bytes:
    """One chunk of chunked coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


async def healthy(served: Served) -> None:
    """A script that answers: a stream of three events when asked for one, else a small JSON document."""
    if b'"stream": true' in served.body or b'"stream":true' in served.body:
        events = [chunk(b'data: {"n": %d}\n\n' % n) for n in range(3)]
        await served.send(SSE_HEAD, *events, chunk(b"data: [DONE]\n\n"), LAST_CHUNK)
    else:
        await served.send(reply(b'{"ok": true}'))


@dataclass
class Response:
    """A response as the client saw it; `complete` is False when the connection ended too early."""

    status: int
    head: bytes
    body: bytes
    complete: bool
    raw_body: bytes = b""

    def header(self, name: str) -> str | None:
        """A header's value."""
        value = header(self.head, name.encode())
        return None if value is None else value.decode()


class Client:
    """A client connection that sends raw bytes and reads raw responses."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Client":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()

    async def send(self, data: bytes) -> None:
        """Send raw bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> bytes:
        """Read a response head, with its blank line."""
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)

    async def response(self, *, to_head: bool = False) -> Response:
        """Read one whole response."""
        head = await self.head()
        status = int(head.split(b" ", 2)[1])
        length = header(head, b"content-length")
        if to_head or status in (204, 304) or status < 200:
            return Response(status, head, b"", complete=True)
        try:
            if header(head, b"transfer-encoding") == b"chunked":
                return await asyncio.wait_for(self._chunked(status, head), 10)
            if length is None:
                return Response(status, head, await asyncio.wait_for(self.reader.read(), 10), complete=True)
            body = await asyncio.wait_for(self.reader.readexactly(int(length)), 10)
            return Response(status, head, body, complete=True)
        except asyncio.IncompleteReadError as error:
            return Response(status, head, error.partial, complete=False)
        except ConnectionError:
            return Response(status, head, b"", complete=False)

    async def _chunked(self, status: int, head: bytes) -> Response:
        body, raw = b"", b""
        while True:
            try:
                line = await self.reader.readuntil(b"\r\n")
                size = int(line, 16)
                data = await self.reader.readexactly(size + 2)
            except (asyncio.IncompleteReadError, ConnectionError):
                return Response(status, head, body, complete=False, raw_body=raw)
            assert data.endswith(b"\r\n")
            raw += line + data
            body += data[:-2]
            if not size:
                return Response(status, head, body, complete=True, raw_body=raw)

    async def closed(self) -> bool:
        """Whether the router ends the connection within two seconds."""
        try:
            return await asyncio.wait_for(self.reader.read(1), 2) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False


def post(body: bytes, path: str = "/v1/chat/completions", headers: str = "") -> bytes:
    """A POST request with a content-length."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n{headers}"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def ask(port: int, request: bytes) -> Response:
    """One request on a connection of its own."""
    async with Client(port) as client:
        await client.send(request)
        return await client.response()
