"""Heads of upstream responses: strict parsing, and the head that goes to the client.

Header lines are passed on byte for byte and in order; only hop-by-hop headers are removed and the router's own are
added. Anything that leaves the end of the message in doubt raises `UpstreamFault`.
"""

import enum
import re
from dataclasses import dataclass
from typing import NamedTuple

from forebay.contract.errors import UpstreamFault

MAX_HEAD_BYTES = 65536
DATED_RETRY_AFTER_S = 1.0
"""Taken for a Retry-After that is a date; engines send seconds."""
_NEVER_NOMINATED = frozenset({b"content-length", b"content-type", b"retry-after", b"x-request-id"})
"""Kept even when Connection names them: without these an answer loses its meaning."""
HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade"})
"""Removed in both directions; transfer-encoding is handled with the framing, not here."""

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n\x00]*)?")
_LINES = re.compile(rb"(?:\r\n[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\r\n\x00]*)*")
_DIGITS = re.compile(rb"[0-9]{1,18}")


class Framing(enum.Enum):
    """How the end of a body is known."""

    EMPTY = "empty"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


class ResponseHead(NamedTuple):
    """A parsed response head. `lines` are the end-to-end header lines, without CRLF; `length` for LENGTH only."""

    status: int
    status_line: bytes
    lines: list[bytes]
    framing: Framing
    length: int
    keep_alive: bool
    event_stream: bool
    has_request_id: bool
    retry_after_s: float | None


@dataclass(slots=True)
class _Fields:
    """Header fields that decide something; `nominated` are the names that Connection lists."""

    lengths: set[bytes]
    nominated: set[bytes]
    chunked: bool = False
    close: bool = False
    event_stream: bool = False
    has_request_id: bool = False
    retry_after_s: float | None = None


_DECIDING = frozenset(
    {
        b"content-length",
        b"transfer-encoding",
        b"content-type",
        b"x-request-id",
        b"retry-after",
        b"connection",
        b"x-forebay-revision",
        b"x-forebay-endpoint",
    }
)


def parse_response_head(head: bytes, *, to_head_request: bool) -> ResponseHead:
    """Parse a head without its final blank line. `to_head_request`: the answer to HEAD has no body."""
    match = _STATUS.match(head)
    if match is None:
        raise UpstreamFault("upstream sent a malformed status line")
    if not _LINES.fullmatch(head, match.end()):
        raise UpstreamFault("upstream sent a malformed header line")
    status_line, *raw = head.split(b"\r\n")
    fields = _Fields(set(), set(), close=match.group(1) == b"0")
    lines = [line for line in raw if _keep(line, fields)]
    nominated = fields.nominated - _NEVER_NOMINATED
    if nominated:
        lines = [line for line in lines if line.partition(b":")[0].lower() not in nominated]
    status = int(match.group(2))
    if to_head_request or status in (204, 304) or status < 200:
        framing, length = Framing.EMPTY, 0
    else:
        framing, length = _framing(fields)
    return ResponseHead(
        status=status,
        status_line=b"HTTP/1.1" + status_line[8:],
        lines=lines,
        framing=framing,
        length=length,
        keep_alive=not fields.close and framing is not Framing.CLOSE,
        event_stream=fields.event_stream,
        has_request_id=fields.has_request_id,
        retry_after_s=fields.retry_after_s,
    )


def _framing(fields: _Fields) -> tuple[Framing, int]:
    """How the end of the body is known, and its length where that is how."""
    if len(fields.lengths) > 1 or (fields.lengths and fields.chunked):
        raise UpstreamFault("upstream sent conflicting body lengths")
    if fields.chunked:
        return Framing.CHUNKED, 0
    if not fields.lengths:
        return Framing.CLOSE, 0
    length = int(next(iter(fields.lengths)))
    return (Framing.LENGTH if length else Framing.EMPTY), length


def _keep(line: bytes, fields: _Fields) -> bool:
    """Read one header line into `fields`; whether the client gets it."""
    name, _, value = line.partition(b":")
    lower = name.lower()
    if lower in _DECIDING:
        return _decide(lower, value.strip(b" \t"), fields)
    return lower not in HOP_BY_HOP


def _decide(name: bytes, value: bytes, fields: _Fields) -> bool:
    match name:
        case b"content-length":
            if not _DIGITS.fullmatch(value):
                raise UpstreamFault("upstream sent a malformed content-length")
            keep = not fields.lengths
            fields.lengths.add(value)
            return keep
        case b"transfer-encoding":
            if value.lower() != b"chunked" or fields.chunked:
                raise UpstreamFault("upstream sent a transfer-encoding other than chunked")
            fields.chunked = True
            return False
        case b"connection":
            tokens = {token.strip(b" \t") for token in value.lower().split(b",")}
            fields.close = fields.close or b"close" in tokens
            fields.nominated |= tokens
            return False
        case b"content-type":
            fields.event_stream = value.lower().startswith(b"text/event-stream")
        case b"x-request-id":
            fields.has_request_id = True
        case b"retry-after":
            fields.retry_after_s = float(value) if _DIGITS.fullmatch(value) else DATED_RETRY_AFTER_S
        case _:
            return False  # our own headers, set by the router alone
    return True


def client_head(
    head: ResponseHead, *, request_id: bytes, revision: str, endpoint: str, close: bool, chunked: bool
) -> bytes:
    """The head for the client, with its final blank line. `chunked`: the body goes out in chunked coding."""
    parts = [head.status_line, *head.lines]
    if chunked:
        parts.append(b"transfer-encoding: chunked")
    if not head.has_request_id:
        parts.append(b"x-request-id: " + request_id)
    parts.append(b"x-forebay-revision: %b\r\nx-forebay-endpoint: %b" % (revision.encode(), endpoint.encode()))
    parts.append(b"connection: close\r\n\r\n" if close else b"\r\n")
    return b"\r\n".join(parts)
