"""Length-prefixed frames over a local stream socket, for both ends of the engine's inner channel.

`FrameReader` is pure and accepts bytes cut anywhere. `CoreChannel` is the core's end: blocking writes, reads that
wait at most a given time. `ApiChannel` is the API process's end on asyncio streams. An end that closes is seen by the
other as `ChannelClosed`, which is how either process learns of the other's death. Frames are bounded.
"""

import asyncio
import selectors
import socket
import struct

from forebay.contract.errors import Bug, EngineFault
from forebay.engine.messages import Message, decode, encode

MAX_FRAME_BYTES = 64 << 20
_HEADER = struct.Struct("<I")
_READ_BYTES = 1 << 18


class ChannelClosed(EngineFault):
    """The other end is gone."""


def frame(message: Message) -> bytes:
    """A message as length and body."""
    body = encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise Bug(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _HEADER.pack(len(body)) + body


class FrameReader:
    """Collects bytes and gives whole messages in order."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Messages completed by `data`; raises `Bug` for a frame over the limit."""
        self._buffer += data
        messages: list[Message] = []
        at = 0
        while len(self._buffer) - at >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer, at)
            if length > MAX_FRAME_BYTES:
                raise Bug(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
            end = at + _HEADER.size + length
            if len(self._buffer) < end:
                break
            messages.append(decode(bytes(self._buffer[at + _HEADER.size : end])))
            at = end
        del self._buffer[:at]
        return messages


class CoreChannel:
    """The core's end of the socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._reader = FrameReader()
        self._selector = selectors.DefaultSelector()
        self._selector.register(end, selectors.EVENT_READ)

    def receive(self, timeout_s: float) -> list[Message]:
        """Messages that have come, waiting up to `timeout_s` for the first; raises `ChannelClosed`."""
        messages: list[Message] = []
        while self._selector.select(0.0 if messages else timeout_s):
            data = self._read()
            messages += self._reader.feed(data)
            if len(data) < _READ_BYTES:
                break
        return messages

    def _read(self) -> bytes:
        try:
            data = self._socket.recv(_READ_BYTES)
        except ConnectionError as error:
            raise ChannelClosed("the API process is gone") from error
        if not data:
            raise ChannelClosed("the API process is gone")
        return data

    def send(self, message: Message) -> None:
        """Write one message, waiting while the socket is full; raises `ChannelClosed`."""
        try:
            self._socket.sendall(frame(message))
        except OSError as error:
            raise ChannelClosed("the API process is gone") from error

    def close(self) -> None:
        """Close the socket."""
        self._selector.close()
        self._socket.close()


class ApiChannel:
    """The API process's end of the socket pair. `send` never waits: the core always reads between steps."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()

    def send(self, message: Message) -> None:
        """Queue one message for the core; dropped once the core is gone, which `receive` reports."""
        if not self._writer.is_closing():
            self._writer.write(frame(message))

    async def receive(self) -> list[Message]:
        """The next messages from the core, at least one; raises `ChannelClosed`."""
        while True:
            try:
                data = await self._reader.read(_READ_BYTES)
            except ConnectionError as error:
                raise ChannelClosed("the core process is gone") from error
            if not data:
                raise ChannelClosed("the core process is gone")
            if messages := self._frames.feed(data):
                return messages

    def close(self) -> None:
        """Close the socket; the core sees it and ends."""
        self._writer.close()


async def open_api_channel(end: socket.socket) -> ApiChannel:
    """The API process's channel over its end of a socket pair."""
    end.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=end)
    return ApiChannel(reader, writer)
