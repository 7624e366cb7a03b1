"""Server-sent events to one client, with a deadline for a client that does not read.

The head goes out with the first bytes. A client that left, or leaves the stream unread for `write_seconds`, is
`Cancelled`. Used by the handlers of `generate.py`.
"""

import asyncio
from contextlib import suppress

from aiohttp import web

from forebay.contract.errors import Cancelled

_LAST_WORDS_S = 1.0
_SMALL_BYTES = 16 << 10


class EventStream:
    """Server-sent events to one client."""

    def __init__(self, request: web.Request, write_seconds: float) -> None:
        self.response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        self._request = request
        self._write_seconds = write_seconds

    async def send(self, events: bytes) -> None:
        """Write events, possibly none."""
        if not events:
            return
        try:
            transport = self._request.transport
            keeps_up = transport is not None and transport.get_write_buffer_size() == 0
            if self.response.prepared and keeps_up and len(events) <= _SMALL_BYTES:
                # A client that has read everything so far cannot make this wait, so it needs no timer.
                await self.response.write(events)
                return
            async with asyncio.timeout(self._write_seconds):
                if not self.response.prepared:
                    await self.response.prepare(self._request)
                await self.response.write(events)
        except ConnectionError as error:
            raise Cancelled("the client left during the stream") from error
        except TimeoutError as error:
            # Closing would wait for the client to read what is buffered.
            if self._request.transport is not None:
                self._request.transport.abort()
            raise Cancelled("the client does not read its stream") from error

    async def cut(self, last_words: bytes) -> None:
        """Say why the stream ends, and end it so that nobody takes it for a complete one."""
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self.response.write(last_words)
        if self._request.transport is not None:
            self._request.transport.close()
