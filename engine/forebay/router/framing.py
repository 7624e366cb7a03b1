"""Body framing of upstream responses: where a message ends, and which bytes may be relayed.

`ChunkedScanner` follows chunked coding across reads of any size. While reads hold whole chunks the caller relays them
verbatim; when one does not, it relays the payload in chunks of its own, so that what the client has seen always ends at
a chunk boundary and an error event can be added. Malformed coding raises `UpstreamFault`: it is never passed on.
"""

import enum
import re
from typing import NamedTuple

from forebay.contract.errors import UpstreamFault

MAX_CHUNK_LINE_BYTES = 1024
MAX_TRAILER_BYTES = 8192
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")
LAST_CHUNK = b"0\r\n\r\n"


class _At(enum.Enum):
    SIZE = 1
    DATA = 2
    DATA_END = 3
    TRAILER = 4
    DONE = 5


class Scan(NamedTuple):
    """What one read held: `consumed` bytes belong to this message.

    `whole`: it began and ended between chunks; then `payload` may be left out, because the bytes go on as they came.
    """

    consumed: int
    payload: tuple[bytes, ...]
    whole: bool


class ChunkedScanner:
    """Incremental reader of one chunked body; `decode` asks for the payload of every read."""

    __slots__ = ("_at", "_decode", "_held", "_left", "_trailer_bytes")

    def __init__(self, *, decode: bool = True) -> None:
        self._decode = decode
        self._at = _At.SIZE
        self._held = b""
        self._left = 0
        self._trailer_bytes = 0

    @property
    def done(self) -> bool:
        """Whether the last chunk and the trailers were read."""
        return self._at is _At.DONE

    def feed(self, data: bytes) -> Scan:
        """Read on; bytes after the end of the body are not consumed."""
        if not self._decode and self._at is _At.SIZE and not self._held and self._holds_whole_chunks(data):
            return Scan(len(data), (), True)
        began_between = self._at is _At.SIZE and not self._held
        held = len(self._held)
        block = self._held + data if held else data
        self._held = b""
        payload: list[bytes] = []
        position, complete = 0, True
        while complete and position < len(block) and self._at is not _At.DONE:
            if self._at is _At.DATA:
                piece = self._data(block, position)
                payload.append(piece)
                position += len(piece)
            else:
                position, complete = self._line(block, position)
        whole = began_between and self._at in (_At.SIZE, _At.DONE) and not self._held
        return Scan(position - held, tuple(payload), whole)

    def _holds_whole_chunks(self, data: bytes) -> bool:
        """Whether the read is nothing but whole chunks, the last one included or not; the common case, made fast."""
        position, size = 0, len(data)
        while position < size:
            mark = data.find(b"\r\n", position, position + MAX_CHUNK_LINE_BYTES)
            match = _SIZE.fullmatch(data, position, mark) if mark > 0 else None
            if match is None:
                return False
            length = int(match[1], 16)
            if not length:
                if data[mark:] != b"\r\n\r\n":
                    return False
                self._at = _At.DONE
                return True
            position = mark + 2 + length
            if data[position : position + 2] != b"\r\n":
                return False
            position += 2
        return True

    def _data(self, block: bytes, start: int) -> bytes:
        piece = block[start : start + self._left]
        self._left -= len(piece)
        if not self._left:
            self._at = _At.DATA_END
        return piece

    def _line(self, block: bytes, start: int) -> tuple[int, bool]:
        """Read one CRLF line at `start`; (new position, whether it was complete). An incomplete one is held."""
        end = block.find(b"\r\n", start)
        if end < 0 or end - start > MAX_CHUNK_LINE_BYTES:
            if len(block) - start > MAX_CHUNK_LINE_BYTES or b"\n" in block[start:]:
                raise UpstreamFault("chunk line is too long or not ended by CRLF")
            self._held = block[start:]
            return len(block), False
        line = block[start:end]
        if self._at is _At.DATA_END:
            if line:
                raise UpstreamFault("chunk data runs past its size")
            self._at = _At.SIZE
        elif self._at is _At.SIZE:
            self._size(line)
        else:
            self._trailer(line)
        return end + 2, True

    def _size(self, line: bytes) -> None:
        match = _SIZE.fullmatch(line)
        if match is None:
            raise UpstreamFault("chunk size is not a hexadecimal number")
        self._left = int(match.group(1), 16)
        self._at = _At.DATA if self._left else _At.TRAILER

    def _trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line) + 2
        if self._trailer_bytes > MAX_TRAILER_BYTES:
            raise UpstreamFault("trailers are too long")
        if not line:
            self._at = _At.DONE


def as_chunk(payload: tuple[bytes, ...]) -> bytes:
    """The payload as one chunk; nothing for an empty payload, which would end the body."""
    data = b"".join(payload)
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
