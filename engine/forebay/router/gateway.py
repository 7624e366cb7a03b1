"""What all connections of a router process share, and the checks before a request is routed.

Holds the fleet, the upstream pool, the retry budget, keys, limits and metrics. `screen` judges a head (path, key, size)
before any body byte is kept; `admit` judges the body. Both return the answer to give, or let the request pass.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol
from urllib.parse import unquote_to_bytes

from forebay.contract.errors import InvalidRequest
from forebay.router import answers
from forebay.router.answers import Answer
from forebay.router.body import NO_FACTS, BodyFacts, read_body
from forebay.router.config import Settings
from forebay.router.fleet import Fleet
from forebay.router.keys import KeySource
from forebay.router.metrics import ROUTES, Metrics
from forebay.router.request import Request
from forebay.router.retry import RetryBudget
from forebay.router.upstream import UpstreamPool

_SEGMENTS = re.compile(rb"/(?:v1(?:/[^/\\]+)+|tokenize|detokenize)")
_PRIVATE = b"/v1/forebay"
_MODEL = b"/v1/models/"
RETRY_AFTER_S = 1


class Swept(Protocol):
    """Something with deadlines, looked at a few times a second."""

    def check(self, now_s: float) -> None:
        """Act on deadlines that have passed."""


class Connected(Swept, Protocol):
    """A client connection."""

    def close_if_idle(self) -> None:
        """End the connection if no request is on it."""


class Admission(NamedTuple):
    """A request that may be routed: what its body says, its sticky key and the client it counts for."""

    facts: BodyFacts
    key: bytes
    client: str | None


class Gateway:
    """The shared context of one router process; everything runs on one event loop."""

    def __init__(
        self,
        settings: Settings,
        keys: KeySource,
        loop: asyncio.AbstractEventLoop,
        new_id: Callable[[], str],
        started_s: int,
    ) -> None:
        self.settings = settings
        self.keys = keys
        self.now = loop.time
        self.new_id = new_id
        self.metrics = Metrics()
        self.pool = UpstreamPool(loop, settings.connect_timeout_s)
        self.fleet = Fleet(self.metrics, self.pool.drop)
        self.budget = RetryBudget()
        self.connections: set[Connected] = set()
        self.exchanges: set[Swept] = set()
        self.streams: Counter[str] = Counter()
        self.buffered_bytes = 0
        self.draining = False
        self._started_s = started_s
        metrics = self.metrics
        metrics.connections.read_with(lambda: len(self.connections))
        metrics.inflight.read_with(lambda: len(self.exchanges))
        metrics.streams.read_with(lambda: sum(self.streams.values()))
        metrics.buffered.read_with(lambda: self.buffered_bytes)
        metrics.draining.read_with(lambda: self.draining)
        metrics.connects.read_with(lambda: self.pool.connects)

    @property
    def ready(self) -> bool:
        """Whether new clients should come here: routes and endpoints were read, and no drain has begun."""
        return self.fleet.view.routes is not None and self.fleet.view.synced and not self.draining

    def sweep(self) -> None:
        """Act on all deadlines; called a few times a second."""
        now_s = self.now()
        self.pool.sweep(now_s)
        for swept in [*self.exchanges, *self.connections]:
            swept.check(now_s)

    def screen(self, request: Request) -> Answer | None:
        """The answer to a request that is refused, or answered here, by its head alone; None lets it pass."""
        path = request.path
        if path in (b"/health", b"/ready"):
            return answers.state(path == b"/health" or self.ready, "draining" if self.draining else "not ready")
        if not _known(path):
            return self._reject("unknown_path", answers.error(404, "There is nothing at this path.", "unknown_path"))
        if not self.keys.open and self.keys.client(request.authorization) is None:
            text = "A valid API key is needed: send it as 'Authorization: Bearer KEY'."
            return self._reject("unauthorized", answers.error(401, text, "invalid_api_key"))
        if request.content_encoding not in (b"", b"identity"):
            return self._reject("malformed", answers.error(415, "Request bodies must not be compressed."))
        if request.method in (b"GET", b"HEAD") and path.startswith(b"/v1/models"):
            return self._models(path)
        return self._make_room(request.content_length or 0)

    def admit(self, request: Request) -> Admission | Answer:
        """Read the body's facts and apply the limits of its key."""
        try:
            facts = read_body(request.body) if _has_json(request) else NO_FACTS
        except InvalidRequest as error:
            return self._reject("malformed", answers.error(400, error.message, param=error.param))
        client = None if self.keys.open else self.keys.client(request.authorization)
        if client is not None and facts.stream and self.streams[client] >= self.settings.max_streams_per_key:
            text = f"This API key has {self.settings.max_streams_per_key} streams open already."
            return self._reject("limit", answers.error(429, text, "too_many_streams", retry_after_s=RETRY_AFTER_S))
        return Admission(facts, request.session or (client or "").encode() or request.request_id, client)

    def answered_here(self, path: bytes, answer: Answer) -> None:
        """Count a request that was answered without an engine."""
        self.metrics.requests.inc(ROUTES.get(path, "other"), f"{answer.status // 100}xx")

    def hold_body(self, size: int) -> None:
        """Count held request bytes; a negative size gives them back."""
        self.buffered_bytes += size

    def stream_began(self, client: str | None) -> None:
        """Count a stream for its key."""
        self.streams[client or ""] += 1

    def stream_ended(self, client: str | None) -> None:
        """Take a stream back; a key without streams takes no memory."""
        self.streams[client or ""] -= 1
        if self.streams[client or ""] <= 0:
            del self.streams[client or ""]

    def _make_room(self, size: int) -> Answer | None:
        if self.buffered_bytes + size <= self.settings.max_buffered_bytes:
            return None
        text = "Too many request bodies are being held; try again soon."
        return self._reject("limit", answers.error(503, text, "overloaded", retry_after_s=RETRY_AFTER_S))

    def _models(self, path: bytes) -> Answer:
        routes = self.fleet.view.routes
        names = routes.models if routes else ()
        if not path.startswith(_MODEL):
            return answers.models(names, self._started_s)
        name = unquote_to_bytes(path[len(_MODEL) :]).decode("utf-8", "replace")
        return answers.model(name, names, self._started_s)

    def _reject(self, reason: str, answer: Answer) -> Answer:
        self.metrics.rejected.inc(reason)
        return answer


def _known(path: bytes) -> bool:
    """Whether clients may reach this path: the API, never an engine's own control paths, in any spelling."""
    if path in ROUTES:
        return True
    if path.startswith(_MODEL):
        # A model name may hold an encoded slash, and is answered here.
        return True
    if not _SEGMENTS.fullmatch(path) or b"%" in path or b";" in path:
        return False
    if path == _PRIVATE or path.startswith(_PRIVATE + b"/"):
        return False
    return not any(segment in (b".", b"..") for segment in path.split(b"/"))


def _has_json(request: Request) -> bool:
    return bool(request.body) and not request.content_type.startswith(b"multipart/")
