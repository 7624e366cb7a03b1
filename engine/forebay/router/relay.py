"""The body of an answer on its way to the client: bytes in from the engine, bytes out for the client.

Framing is passed on as it came wherever the client can take it. An HTTP/1.0 client gets plain bytes; a body without a
length gets chunked coding, so that a client can tell a cut from an end. After every read the client stands at a chunk
boundary, which is what makes `error_tail` possible.
"""

from forebay.router.framing import LAST_CHUNK, ChunkedScanner, as_chunk
from forebay.router.heads import Framing, ResponseHead


class BodyRelay:
    """One answer's body. `done`: it was relayed to its end; `surplus`: the engine sent bytes beyond it."""

    __slots__ = ("_framing", "_left", "_plain", "_scanner", "done", "surplus")

    def __init__(self, head: ResponseHead, *, http_10: bool) -> None:
        self._framing = head.framing
        self._plain = http_10
        self._left = head.length
        self._scanner = ChunkedScanner(decode=http_10) if head.framing is Framing.CHUNKED else None
        self.done = head.framing is Framing.EMPTY
        self.surplus = False

    @property
    def chunked_out(self) -> bool:
        """Whether the client gets chunked coding."""
        return self._framing in (Framing.CHUNKED, Framing.CLOSE) and not self._plain

    def feed(self, data: bytes) -> bytes:
        """Bytes for the client from one read; raises `UpstreamFault` on malformed coding."""
        framing = self._framing
        if self._scanner is not None:
            return self._chunked(self._scanner, data)
        if framing is Framing.LENGTH:
            return self._counted(data)
        if framing is Framing.CLOSE:
            return data if self._plain else as_chunk((data,))
        self.surplus = True
        return b""

    def closed(self) -> bytes | None:
        """The engine closed in order: the last bytes for the client, or None when the body is not complete."""
        if self._framing is not Framing.CLOSE:
            return None
        self.done = True
        return b"" if self._plain else LAST_CHUNK

    def error_tail(self, event: bytes) -> bytes:
        """An error event in the client's framing; nothing where a byte more would break a promised length."""
        if self._framing not in (Framing.CHUNKED, Framing.CLOSE):
            return b""
        return event if self._plain else as_chunk((event,))

    def _chunked(self, scanner: ChunkedScanner, data: bytes) -> bytes:
        scan = scanner.feed(data)
        self.done = scanner.done
        self.surplus = scan.consumed < len(data)
        if scan.whole and not self._plain:
            return data[: scan.consumed] if self.surplus else data
        if self._plain:
            return b"".join(scan.payload)
        return as_chunk(scan.payload) + (LAST_CHUNK if scanner.done else b"")

    def _counted(self, data: bytes) -> bytes:
        self.surplus = len(data) > self._left
        piece = data[: self._left] if self.surplus else data
        self._left -= len(piece)
        self.done = self._left == 0
        return piece
