"""Errors as OpenAI-shaped HTTP answers: the one place where our taxonomy meets status codes.

Used by the middleware for whole answers and by the stream for error events. Never shows a traceback or a path.
"""

import math
from dataclasses import dataclass

import orjson
from aiohttp import web

from forebay.contract.errors import EngineFault, ForebayError, InvalidRequest, Overloaded, RetryKind

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_CODES = {
    400: "invalid_request",
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
    431: "headers_too_large",
}


class Unavailable(ForebayError):
    """The engine cannot take or finish this request now, another one might: draining, loading, out of time."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Problem:
    """An error answer; `retry_after_s` is 0 when a later retry is not the advice."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: float = 0.0

    def document(self) -> dict[str, object]:
        """The OpenAI error object."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def body(self) -> bytes:
        """The JSON body."""
        return orjson.dumps(self.document())

    def response(self) -> web.Response:
        """The HTTP answer."""
        response = web.Response(status=self.status, body=self.body(), content_type="application/json")
        if self.retry_after_s > 0:
            response.headers["Retry-After"] = str(math.ceil(self.retry_after_s))
        if self.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response


def problem_of(error: Exception) -> Problem:
    """The answer for an error; anything unforeseen is a plain 500."""
    if isinstance(error, InvalidRequest):
        code = "model_not_found" if error.status == 404 else _CODES.get(error.status, "invalid_request")
        return Problem(error.status, code, error.message, error.param)
    if isinstance(error, Overloaded):
        return Problem(429, error.code, error.message, retry_after_s=error.retry.after_s)
    if isinstance(error, Unavailable):
        return Problem(503, error.code, error.message, retry_after_s=1.0)
    if isinstance(error, EngineFault):
        return Problem(503, error.code, error.message)
    if isinstance(error, ForebayError):
        after_s = error.retry.after_s if error.retry.kind is RetryKind.AFTER else 0.0
        return Problem(500, error.code, error.message, retry_after_s=after_s)
    return Problem(500, "internal_error", "the engine could not answer this request")


def problem_of_status(status: int, message: str) -> Problem:
    """The answer for a plain HTTP status."""
    return Problem(status, _CODES.get(status, "invalid_request" if status < 500 else "internal_error"), message)
