"""One request from its head to its end, whatever the end: places, limits, time, outcome, metrics, event.

`watched` is entered first and left last by every handler that makes the model work. A handler that leaves without
saying how it went was cancelled: its client is gone. Reading bodies is here too, since it is the first phase.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import web

from forebay.contract.errors import Blame, Cancelled, ForebayError, InvalidRequest, Overloaded
from forebay.engine.server.clients import Client
from forebay.engine.server.errors import Unavailable
from forebay.engine.server.service import Service

CLIENT_KEY = web.RequestKey("client", Client)
REQUEST_ID_KEY = web.RequestKey("request_id", str)


@dataclass(slots=True)
class Watch:
    """A request on its way. `began_s` is on the monotonic clock; `phase` says what a client that leaves cuts off."""

    client: Client
    began_s: float
    phase: str = "body"
    outcome: str = "cancelled"
    prompt_tokens: int = 0
    output_tokens: int = 0


@contextmanager
def watched(service: Service, endpoint: str, request: web.Request) -> Iterator[Watch]:
    """Counts a request as open and notes its end; raises `Overloaded` when there is no place or a limit is used up."""
    watch = Watch(request[CLIENT_KEY], service.clock.monotonic_s())
    try:
        with service.request(), watch.client.request(watch.began_s):
            yield watch
    except ForebayError as error:
        watch.outcome = outcome_of(error)
        raise
    except Exception:
        watch.outcome = "error"
        raise
    finally:
        seconds = service.clock.monotonic_s() - watch.began_s
        service.metrics.ended(endpoint, watch.outcome, watch.phase, seconds)
        service.events.note(
            "request",
            request_id=request[REQUEST_ID_KEY],
            endpoint=endpoint,
            outcome=watch.outcome,
            phase=watch.phase,
            seconds=round(seconds, 4),
            prompt_tokens=watch.prompt_tokens,
            output_tokens=watch.output_tokens,
        )


def outcome_of(error: ForebayError) -> str:
    """The metric label of a request that ended with an error."""
    if isinstance(error, Overloaded):
        return "overloaded"
    if isinstance(error, Unavailable):
        return "unavailable"
    if isinstance(error, Cancelled):
        return "cancelled"
    return "invalid" if error.blame is Blame.CLIENT else "error"


async def read_body(request: web.Request, seconds: float) -> bytes:
    """The body within the size limit and the time; raises `InvalidRequest` with 408, 413 or 415."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise InvalidRequest("content-encoding: compressed bodies are not supported", status=415)
    limit = request.client_max_size
    if request.content_length is not None and request.content_length > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise _too_large(limit) from error
    except TimeoutError as error:
        raise InvalidRequest(f"the body did not come within {seconds:g} s", status=408) from error
    except web.RequestPayloadError as error:
        raise InvalidRequest(f"the body is malformed: {error}") from error


def _too_large(limit: int) -> InvalidRequest:
    return InvalidRequest(f"the body is larger than {limit} bytes", status=413)
