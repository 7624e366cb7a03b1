"""Requests from clients: incremental parsing with httptools, and everything that is refused before routing.

`RequestReader` turns bytes into `Request` values, in order, also when several arrive in one read. A request that
cannot be trusted to have one meaning (two lengths, a length with chunked coding, no host) is refused and its connection
ends: `Rejected` says with what. Bodies are kept whole and unchanged; the head for the upstream carries every end-to-end
header line as it came.
"""

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass

import httptools

from forebay.router import answers
from forebay.router.answers import Answer
from forebay.router.heads import HOP_BY_HOP

_UPSTREAM_DROPPED = HOP_BY_HOP | {
    b"transfer-encoding",
    b"content-length",
    b"expect",
    b"http2-settings",
    b"proxy-authorization",
}
_SINGLE = frozenset({b"host", b"content-length", b"transfer-encoding", b"authorization", b"content-type"})
_NEVER_NOMINATED = _SINGLE | {b"x-request-id", b"close", b"keep-alive"}
_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
_DIGITS = re.compile(rb"[0-9]{1,18}")
_TARGET = re.compile(rb"[\x21-\x7e]+")
MAX_HEADERS = 128
WIRE_OVERHEAD = 8
"""Chunked coding may take this many times the body limit on the wire; more is a flood of tiny chunks."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Sizes in bytes; what goes beyond is refused before it is stored."""

    head_bytes: int
    body_bytes: int


class Rejected(Exception):
    """A request refused while it was read; its connection ends after the answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Screened(Rejected):
    """A readable request that `on_head` refused; its body is not read."""


def rejected(status: int, message: str) -> Rejected:
    """A refusal with an OpenAI-shaped body."""
    return Rejected(answers.error(status, message, "malformed_request" if status < 500 else None))


class Request:
    """One client request. `path` is the target without its query; `head_lines` are for the upstream."""

    __slots__ = (
        "answer",
        "authorization",
        "body",
        "chunked",
        "content_encoding",
        "content_length",
        "content_type",
        "expects_continue",
        "head_lines",
        "held_bytes",
        "http_10",
        "keep_alive",
        "method",
        "path",
        "request_id",
        "session",
        "target",
    )

    def __init__(self, method: bytes, target: bytes) -> None:
        self.method = method
        self.target = target
        self.path = target.partition(b"?")[0]
        self.head_lines: list[bytes] = []
        self.body = b""
        self.authorization = b""
        self.content_encoding = b""
        self.content_type = b""
        self.content_length: int | None = None
        self.held_bytes = 0
        self.chunked = False
        self.answer: Answer | None = None
        self.session = b""
        self.request_id = b""
        self.expects_continue = False
        self.http_10 = False
        self.keep_alive = True

    @property
    def has_body(self) -> bool:
        """Whether body bytes follow the head."""
        return self.chunked or bool(self.content_length)

    def set_request_id(self, request_id: bytes) -> None:
        """Give the request an id of ours, which the engine gets too."""
        self.request_id = request_id
        self.head_lines.append(b"x-request-id: %b\r\n" % request_id)

    def upstream_bytes(self) -> bytes:
        """The request as it goes to an engine; the body has a length whatever its coding was."""
        has_length = self.body or self.content_length is not None or self.method in (b"POST", b"PUT", b"PATCH")
        length = b"content-length: %d\r\n\r\n" % len(self.body) if has_length else b"\r\n"
        return b"".join([b"%b %b HTTP/1.1\r\n" % (self.method, self.target), *self.head_lines, length, self.body])


class Stage(enum.Enum):
    """What a reader waits for: nothing, the rest of a head, or the rest of a body."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"


class RequestReader:
    """Feeds one connection's bytes to httptools; `on_head` and `on_request` are called as requests become known.

    `on_head` is called with each complete head; the answer it returns is final, and a body that would follow is not
    read. `on_request` is called with each complete request.
    """

    def __init__(
        self,
        limits: RequestLimits,
        on_head: Callable[[Request], Answer | None],
        on_request: Callable[[Request], None],
    ) -> None:
        self._limits = limits
        self._on_head = on_head
        self._on_request = on_request
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._wire_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self.stage = Stage.IDLE
        self._messages = 0
        self._resuming = False
        self._request: Request | None = None
        self._rejected: Rejected | None = None

    def feed(self, data: bytes) -> None:
        """Read on; raises `Rejected` when the connection cannot go on."""
        # The number the current message will have if `data` holds no other message's bytes.
        number = self._messages + (1 if self.stage is Stage.IDLE else 0)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # An offer to change the protocol is optional to take; the connection goes on with HTTP/1.1.
            self._begin_again()
            rest = data[upgrade.args[0] :]
            if rest:
                self.feed(rest)
        except httptools.HttpParserInvalidMethodError as error:
            raise rejected(400, "the request line is malformed: unknown method") from error
        except httptools.HttpParserError as error:
            if self._rejected is not None:
                raise self._rejected from error
            raise rejected(400, f"the request is malformed: {error}") from error
        if self.stage is not Stage.IDLE and self._messages == number:
            self._count(len(data))

    def _begin_again(self) -> None:
        """A new parser, because the old one takes all that follows an upgrade for another protocol, bodies too."""
        self._parser = httptools.HttpRequestParser(self)
        request = self._request
        if request is not None:
            self._resuming = True
            framing = (
                b"transfer-encoding: chunked"
                if request.chunked
                else b"content-length: %d" % (request.content_length or 0)
            )
            self._parser.feed_data(b"POST / HTTP/1.1\r\nhost: x\r\n%b\r\n\r\n" % framing)
            self._resuming = False

    def _count(self, size: int) -> None:
        if self._request is None:
            self._head_bytes += size
            if self._head_bytes > self._limits.head_bytes:
                raise rejected(431, f"the request head is larger than {self._limits.head_bytes} bytes")
        else:
            self._wire_bytes += size
            if self._wire_bytes > WIRE_OVERHEAD * self._limits.body_bytes + self._limits.head_bytes:
                raise rejected(413, "the chunked coding of the body is too wasteful")

    def on_message_begin(self) -> None:
        """Called by httptools."""
        if self._resuming:
            return
        self.stage = Stage.HEAD
        self._messages += 1
        self._url = b""
        self._headers = []
        self._head_bytes = 0
        self._wire_bytes = 0
        self._body = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Called by httptools, with parts when the target spans reads."""
        self._url += b"" if self._resuming else url

    def on_header(self, name: bytes, value: bytes | None) -> None:
        """Called by httptools; after the head these are trailers, which are counted and dropped."""
        if self._request is None:
            self._headers.append((name, value or b""))
            return
        if self._resuming:
            return
        self._head_bytes += len(name) + len(value or b"")
        if self._head_bytes > self._limits.head_bytes:
            self._rejected = rejected(431, "the trailers are too long")
            raise self._rejected

    def on_headers_complete(self) -> None:
        """Called by httptools."""
        if self._resuming:
            return
        try:
            request = self._make_request()
            self._request = request
            self.stage = Stage.BODY
            self._screen(request)
        except Rejected as refusal:
            self._rejected = refusal
            raise

    def on_body(self, body: bytes) -> None:
        """Called by httptools with a piece of the decoded body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_bytes:
            self._rejected = too_large(self._limits.body_bytes)
            raise self._rejected
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Called by httptools."""
        request = self._request
        assert request is not None  # noqa: S101 (httptools calls in order)
        if request.has_body and self._parser.should_upgrade():
            return
        request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._request = None
        self.stage = Stage.IDLE
        self._body = []
        self._body_bytes = 0
        self._on_request(request)

    def _screen(self, request: Request) -> None:
        request.answer = self._on_head(request)
        if request.answer is not None and request.has_body:
            raise Screened(request.answer)

    def _make_request(self) -> Request:
        head_bytes = len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers)
        if head_bytes > self._limits.head_bytes or len(self._headers) > MAX_HEADERS:
            raise rejected(431, f"the request head is larger than {self._limits.head_bytes} bytes")
        method = self._parser.get_method()
        if method not in _METHODS:
            raise rejected(405, "the method is not allowed")
        request = Request(method, _origin_form(self._url))
        request.http_10 = self._parser.get_http_version() == "1.0"
        if self._parser.get_http_version() not in ("1.0", "1.1"):
            raise rejected(400, "only HTTP/1.0 and HTTP/1.1 are spoken here")
        request.keep_alive = bool(self._parser.should_keep_alive()) and not request.http_10
        _read_fields(request, self._headers)
        self._headers = []
        if (request.content_length or 0) > self._limits.body_bytes:
            raise too_large(self._limits.body_bytes)
        return request


def too_large(limit_bytes: int) -> Rejected:
    """The refusal of a body beyond the limit."""
    return rejected(413, f"the request body is larger than {limit_bytes} bytes")


def _origin_form(url: bytes) -> bytes:
    """The request target as path and query; an absolute target loses its scheme and authority."""
    if not _TARGET.fullmatch(url):
        raise rejected(400, "the request target is malformed")
    if url.startswith(b"/"):
        return url
    scheme, separator, rest = url.partition(b"://")
    if separator and scheme.lower() in (b"http", b"https"):
        slash = rest.find(b"/")
        return rest[slash:] if slash >= 0 else b"/"
    raise rejected(400, "the request target must be a path")


def _read_fields(request: Request, headers: list[tuple[bytes, bytes]]) -> None:
    """Read the fields that decide something, and keep the end-to-end lines; raises `Rejected` on any doubt."""
    seen: set[bytes] = set()
    nominated: set[bytes] = set()
    lines = request.head_lines
    for name, value in headers:
        lower = name.lower()
        if lower in _DECIDING:
            _read_field(request, lower, value, seen, nominated)
        if lower not in _UPSTREAM_DROPPED:
            lines.append(b"%b: %b\r\n" % (name, value))
    _check_together(request, seen)
    nominated -= _NEVER_NOMINATED
    if nominated:
        dropped = tuple(name + b":" for name in nominated)
        request.head_lines = [line for line in lines if not line.lower().startswith(dropped)]


def _once(name: bytes, seen: set[bytes]) -> None:
    if name in _SINGLE and name in seen:
        raise rejected(400, f"the header {name.decode()} is repeated")
    seen.add(name)


def _check_together(request: Request, seen: set[bytes]) -> None:
    """Refuse fields that are fine alone and leave doubt together."""
    if request.chunked and request.content_length is not None:
        raise rejected(400, "content-length and transfer-encoding exclude each other")
    if b"host" not in seen and not request.http_10:
        raise rejected(400, "the header host is missing")
    if request.chunked and request.http_10:
        raise rejected(400, "HTTP/1.0 has no transfer-encoding")


def _read_field(request: Request, name: bytes, value: bytes, seen: set[bytes], nominated: set[bytes]) -> None:
    _once(name, seen)
    match name:
        case b"content-length":
            if not _DIGITS.fullmatch(value):
                raise rejected(400, "content-length must be a decimal number")
            request.content_length = int(value)
        case b"transfer-encoding":
            if value.lower() != b"chunked":
                raise rejected(400, "transfer-encoding must be chunked")
            request.chunked = True
        case b"connection":
            nominated.update(token.strip().lower() for token in value.split(b",") if token.strip())
        case b"expect":
            if value.lower() != b"100-continue":
                raise rejected(417, "expect must be 100-continue")
            request.expects_continue = True
        case b"authorization":
            request.authorization = value
        case b"content-type":
            request.content_type = value.lower()
        case b"content-encoding":
            request.content_encoding = value.lower()
        case b"x-forebay-session":
            request.session = value
        case b"x-request-id":
            request.request_id = request.request_id or value
        case _:
            pass


_DECIDING = frozenset(
    {
        b"authorization",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"transfer-encoding",
        b"x-forebay-session",
        b"x-request-id",
    }
)
