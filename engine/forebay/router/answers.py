"""Answers the router gives itself: OpenAI-shaped errors, health, readiness and the model list."""

import http
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

_PHRASES = {status.value: status.phrase.encode() for status in http.HTTPStatus}
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete small response."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b"application/json"

    def render(self, *, request_id: bytes, close: bool, head_only: bool) -> bytes:
        """The bytes for the client; `head_only` for HEAD."""
        lines = [
            b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n"
            % (self.status, _PHRASES.get(self.status, b""), self.content_type, len(self.body))
        ]
        lines += [b"%b: %b\r\n" % header for header in self.headers]
        if request_id:
            lines.append(b"x-request-id: %b\r\n" % request_id)
        lines.append(b"connection: close\r\n\r\n" if close else b"\r\n")
        return b"".join(lines) + (b"" if head_only else self.body)


def error_document(status: int, message: str, code: str | None, param: str | None = None) -> dict[str, object]:
    """The OpenAI error shape."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error(
    status: int, message: str, code: str | None = None, *, param: str | None = None, retry_after_s: int | None = None
) -> Answer:
    """An error answer; 401 asks for a bearer token, and `retry_after_s` becomes Retry-After."""
    headers: list[tuple[bytes, bytes]] = []
    if retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % retry_after_s))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 405:
        headers.append((b"allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"))
    return Answer(status, orjson.dumps(error_document(status, message, code, param)), tuple(headers))


def error_event(message: str, code: str) -> bytes:
    """A server-sent event with the error; the blank line first ends an event that was cut in the middle."""
    return b"\n\ndata: " + orjson.dumps(error_document(502, message, code)) + b"\n\n"


def models(names: Sequence[str], created_s: int) -> Answer:
    """The list for GET /v1/models."""
    return Answer(200, orjson.dumps({"object": "list", "data": [_model(name, created_s) for name in names]}))


def model(name: str, names: Sequence[str], created_s: int) -> Answer:
    """One model for GET /v1/models/NAME, or 404."""
    return Answer(200, orjson.dumps(_model(name, created_s))) if name in names else unknown_model(name)


def unknown_model(name: str) -> Answer:
    """The 404 for a model that is not served here."""
    return error(404, f"The model {name!r} does not exist or is not served here.", "model_not_found", param="model")


def _model(name: str, created_s: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created_s, "owned_by": "forebay"}


def state(ok: bool, reason: str) -> Answer:
    """The answer of /health and /ready."""
    return Answer(200 if ok else 503, orjson.dumps({"status": "ok" if ok else reason}))
