"""The error taxonomy shared by all planes.

Every error says what happened, whether a retry can help (`retry`) and whose fault it is (`blame`). Foreign
exceptions are mapped to one of these once per boundary, with the cause chained; inner code never sees them.
"""

import enum
from dataclasses import dataclass


class Blame(enum.Enum):
    """Whose fault an error is; metrics count by it."""

    CLIENT = "client"
    US = "us"
    DEPENDENCY = "dependency"


class RetryKind(enum.Enum):
    """Whether and where the same call can be tried again."""

    NEVER = "never"
    AFTER = "after"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class Retry:
    """What a caller may do next; `after_s` is meaningful for AFTER only."""

    kind: RetryKind
    after_s: float = 0.0


RETRY_NEVER = Retry(RetryKind.NEVER)
RETRY_ELSEWHERE = Retry(RetryKind.ELSEWHERE)


class ForebayError(Exception):
    """Root of all errors that Forebay raises on purpose."""

    code = "forebay_error"
    blame = Blame.US

    def __init__(self, message: str, *, retry: Retry = RETRY_NEVER) -> None:
        super().__init__(message)
        self.message = message
        self.retry = retry


class InvalidRequest(ForebayError):
    """A client request that can never succeed as sent; `param` names the field."""

    code = "invalid_request_error"
    blame = Blame.CLIENT

    def __init__(self, message: str, *, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


class Overloaded(ForebayError):
    """No room now; `retry.after_s` says when to come back."""

    code = "overloaded"
    blame = Blame.US

    def __init__(self, message: str, *, after_s: float) -> None:
        super().__init__(message, retry=Retry(RetryKind.AFTER, after_s))


class Cancelled(ForebayError):
    """The client left; counted, never logged as an error."""

    code = "cancelled"
    blame = Blame.CLIENT


class EngineFault(ForebayError):
    """The engine cannot go on: every request ends with a reason and the process exits non-zero."""

    code = "engine_fault"


class TransferFault(ForebayError):
    """A KV block could not be moved; the answer is recompute, never a client error."""

    code = "transfer_fault"
    blame = Blame.DEPENDENCY


class UpstreamFault(ForebayError):
    """An engine failed under the router; retried elsewhere only before the first byte."""

    code = "upstream_fault"
    blame = Blame.DEPENDENCY


class InvalidSpec(ForebayError):
    """A resource whose spec cannot be realised; `field` is the path and the message says the fix."""

    code = "invalid_spec"
    blame = Blame.CLIENT

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class Incompatible(ForebayError):
    """Two versions that cannot work together; nothing is touched."""

    code = "incompatible"
    blame = Blame.CLIENT


class ApiConflict(ForebayError):
    """The Kubernetes API answered 409; read again and retry now."""

    code = "api_conflict"
    blame = Blame.DEPENDENCY


class ApiGone(ForebayError):
    """The Kubernetes object does not exist (404 or 410)."""

    code = "api_gone"
    blame = Blame.DEPENDENCY


class ApiThrottled(ForebayError):
    """The Kubernetes API is overloaded or unreachable; back off."""

    code = "api_throttled"
    blame = Blame.DEPENDENCY


class ApiDenied(ForebayError):
    """The Kubernetes API refused (401, 403, or 422); the message carries the missing permission or field."""

    code = "api_denied"
    blame = Blame.US


class Bug(ForebayError):
    """A broken invariant of our own: crashes tests, ends one request or key in production."""

    code = "bug"
