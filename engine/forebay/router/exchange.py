"""One request's way through the router: dispatch, retries, relay, and its end on every path.

Driven by callbacks only, without a task of its own. Phases move by the table in `phase`. Whatever happens, the lease is
closed, the upstream connection is either back in the pool or aborted, and the client side hears exactly one of
`answered`, `finished` and `cut`, or has itself called `cancel`.
"""

import asyncio
import logging
from typing import Protocol

from forebay.contract.errors import UpstreamFault
from forebay.router import answers, heads, retry
from forebay.router.answers import Answer
from forebay.router.gateway import RETRY_AFTER_S, Admission, Gateway
from forebay.router.heads import ResponseHead
from forebay.router.leases import Lease
from forebay.router.metrics import ROUTES
from forebay.router.phase import MOVES, Phase
from forebay.router.policy import Choice, Refusal
from forebay.router.relay import BodyRelay
from forebay.router.request import Request
from forebay.router.retry import Failure, Verdict
from forebay.router.upstream import UpstreamConnection
from forebay.router.view import EndpointState

LOG = logging.getLogger(__name__)


class Downstream(Protocol):
    """The client side of an exchange."""

    def send(self, data: bytes) -> None:
        """Queue bytes for the client."""

    def answered(self, answer: Answer) -> None:
        """Nothing was sent yet: give the client this answer."""

    def finished(self, *, close: bool) -> None:
        """The answer is complete."""

    def cut(self) -> None:
        """The answer cannot be completed: end the connection so that the client can tell."""


class Exchange:
    """One client request at one engine after the other, until it is answered, cut or cancelled."""

    __slots__ = (
        "_admission",
        "_attempt_s",
        "_client",
        "_close",
        "_connecting",
        "_connection",
        "_gateway",
        "_head",
        "_held",
        "_history",
        "_last_byte_s",
        "_lease",
        "_paused",
        "_phase",
        "_relay",
        "_request",
        "_route",
        "_started_s",
        "_state",
        "_tried",
    )

    def __init__(self, gateway: Gateway, client: Downstream, request: Request, admission: Admission) -> None:
        self._gateway = gateway
        self._client = client
        self._request = request
        self._admission = admission
        self._route = ROUTES.get(request.path, "other")
        self._phase = Phase.CONNECT
        self._started_s = self._attempt_s = self._last_byte_s = gateway.now()
        self._history: tuple[Failure, ...] = ()
        self._tried: list[EndpointState] = []
        self._state: EndpointState | None = None
        self._lease: Lease | None = None
        self._connection: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._held = b""
        self._head: ResponseHead | None = None
        self._relay: BodyRelay | None = None
        self._paused = False
        self._close = False

    def start(self) -> None:
        """Dispatch the request."""
        gateway = self._gateway
        gateway.exchanges.add(self)
        if self._admission.facts.stream:
            gateway.stream_began(self._admission.client)
        gateway.budget.request()
        choice = self._choose()
        if isinstance(choice, Choice):
            self._use(choice.target)
        else:
            self._refuse(choice)

    # Client side.

    def cancel(self) -> None:
        """The client left: the engine hears it now."""
        if self._phase is Phase.DONE:
            return
        self._gateway.metrics.cancelled.inc(self._phase.name.lower())
        if self._state is not None:
            self._state.breaker.abandoned(self._gateway.now())
        self._end("499")

    def pause(self) -> None:
        """The client reads slower than the engine writes."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """The client reads again."""
        self._paused = False
        self._last_byte_s = self._gateway.now()
        if self._connection is not None:
            self._connection.resume()

    def check(self, now_s: float) -> None:
        """Act on the first-byte and stall timeouts; called a few times a second."""
        settings = self._gateway.settings
        if self._phase in (Phase.HEADERS, Phase.FIRST_CHUNK):
            stream = self._admission.facts.stream
            if now_s - self._attempt_s > (settings.first_byte_timeout_s if stream else settings.response_timeout_s):
                self._fail(Failure.FIRST_BYTE_TIMEOUT, "the engine did not begin to answer in time")
        elif self._phase is Phase.BODY and not self._paused and now_s - self._last_byte_s > settings.stall_timeout_s:
            self._fail(Failure.STALL, "the engine stopped in the middle of its answer")

    # Upstream side.

    def on_connected(self, connection: UpstreamConnection) -> None:
        """Send the request on a connection that now belongs to this exchange."""
        self._connecting = None
        self._connection = connection
        connection.listener = self
        self._attempt_s = self._gateway.now()
        self._move(Phase.HEADERS)
        connection.send(self._request.upstream_bytes())
        if self._paused:
            connection.pause()

    def on_connect_failed(self, reason: str) -> None:
        """The endpoint cannot be reached; nothing was sent."""
        self._connecting = None
        self._fail(Failure.CONNECT, f"the engine cannot be reached: {reason}")

    def on_data(self, data: bytes) -> None:
        """Bytes of the engine's answer."""
        try:
            if self._relay is None:
                self._on_head_bytes(data)
            else:
                self._on_body(self._relay, data)
        except UpstreamFault as fault:
            self._fail(Failure.BAD_RESPONSE, fault.message)

    def on_lost(self, error: Exception | None) -> None:
        """The engine's connection ended."""
        connection, self._connection = self._connection, None
        relay = self._relay
        if relay is not None and error is None:
            tail = relay.closed()
            if tail is not None:
                self._client.send(tail)
                self._complete()
                return
        failure = Failure.RESET
        if relay is None and not self._held and connection is not None:
            elapsed_s = self._gateway.now() - self._attempt_s
            failure = retry.classify_loss(reused=connection.reused, elapsed_s=elapsed_s)
        self._fail(failure, "the engine closed the connection before its answer was complete")

    # Dispatch and retries.

    def _choose(self) -> Choice | Refusal:
        admission = self._admission
        return self._gateway.fleet.choose(admission.facts.model, admission.key, self._gateway.now(), self._tried)

    def _use(self, state: EndpointState) -> None:
        gateway = self._gateway
        now_s = gateway.now()
        self._state = state
        self._tried.append(state)
        self._lease = gateway.fleet.dispatch(state, now_s)
        connection = gateway.pool.take(state, now_s)
        if connection is not None:
            self.on_connected(connection)
        else:
            self._connecting = gateway.pool.connect(state, self)

    def _fail(self, failure: Failure, message: str) -> None:
        """An attempt failed: try elsewhere, or answer, or cut."""
        self._judge(failure, None)
        if self._retry(failure):
            return
        if self._relay is None:
            self._end("5xx", answer=_failure_answer(failure, message))
            return
        LOG.warning("cut the answer of request %s: %s", self._request.request_id.decode("latin-1"), message)
        self._gateway.metrics.cut_streams.inc()
        if self._head is not None and self._head.event_stream:
            self._client.send(self._relay.error_tail(answers.error_event(message, "upstream_error")))
        self._end("5xx")
        self._client.cut()

    def _judge(self, failure: Failure, retry_after_s: float | None) -> None:
        """Tell the endpoint's state about a failed attempt."""
        gateway, state = self._gateway, self._state
        assert state is not None  # noqa: S101 (an attempt has an endpoint)
        now_s = gateway.now()
        gateway.metrics.failures.inc(failure.value)
        if failure is Failure.STATUS_429:
            state.breaker.succeeded()
        elif failure is Failure.RESET_REUSED:
            state.breaker.abandoned(now_s)
        else:
            state.breaker.failed(now_s)
            gateway.fleet.failed(state)
        avoid_s = retry.avoid_s(failure, retry_after_s)
        if avoid_s > 0:
            state.avoid(now_s + avoid_s)

    def _retry(self, failure: Failure) -> bool:
        """Dispatch again if the failure allows it and another endpoint is there; whether it did."""
        gateway = self._gateway
        sent = self._head is not None
        if retry.decide(failure, self._history, bytes_sent=sent, budget=gateway.budget) is not Verdict.RETRY:
            return False
        choice = self._choose()
        target = choice.target if isinstance(choice, Choice) else None
        if target is None and failure is Failure.RESET_REUSED:
            # The idle connection was stale, not the engine: a fresh one to the same engine is an attempt elsewhere.
            target = self._state
        if target is None:
            return False
        self._release()
        gateway.budget.spend(failure)
        gateway.metrics.retries.inc(failure.value)
        self._history += (failure,)
        self._held = b""
        self._move(Phase.CONNECT)
        if failure is Failure.RESET_REUSED:
            # Where one idle connection was stale the others may be; the second attempt must not meet another.
            gateway.pool.drop(self._state or target)
            gateway.pool.drop(target)
        self._use(target)
        return True

    def _refuse(self, refusal: Refusal) -> None:
        gateway = self._gateway
        gateway.metrics.rejected.inc(refusal.value)
        if refusal is Refusal.UNKNOWN_MODEL:
            self._end("4xx", answer=answers.unknown_model(self._admission.facts.model or ""))
        else:
            text = "No engine is ready for this model; try again soon."
            self._end("5xx", answer=answers.error(503, text, "no_endpoint", retry_after_s=RETRY_AFTER_S))

    # Relay.

    def _on_head_bytes(self, data: bytes) -> None:
        block = self._held + data if self._held else data
        while True:
            end = block.find(b"\r\n\r\n")
            if end < 0 or end > heads.MAX_HEAD_BYTES:
                if len(block) > heads.MAX_HEAD_BYTES:
                    raise UpstreamFault("upstream sent a response head that is too long")
                self._held = block
                return
            head = heads.parse_response_head(block[:end], to_head_request=self._request.method == b"HEAD")
            block = block[end + 4 :]
            if head.status >= 200:
                break
        self._held = b""
        self._on_head(head, block)

    def _on_head(self, head: ResponseHead, rest: bytes) -> None:
        state = self._state
        assert state is not None  # noqa: S101 (an answer has an endpoint)
        failure = retry.classify_status(head.status, not_begun=head.retry_after_s is not None)
        if failure is not None:
            self._judge(failure, head.retry_after_s)
            if self._retry(failure):
                return
        elif head.status >= 500:
            state.breaker.failed(self._gateway.now())
            self._gateway.fleet.failed(state)
        else:
            state.breaker.succeeded()
        self._head = head
        relay = self._relay = BodyRelay(head, http_10=self._request.http_10)
        self._move(Phase.FIRST_CHUNK)
        # Decided once: a connection whose head promised to stay must not be closed under the next request.
        self._close = self._gateway.draining or not self._request.keep_alive
        out = heads.client_head(
            head,
            request_id=self._request.request_id,
            revision=state.endpoint.revision,
            endpoint=state.endpoint.pod,
            close=self._close,
            chunked=relay.chunked_out,
        )
        if rest and not relay.done:
            # One packet for the head and what came with it.
            self._on_body(relay, rest, out)
            return
        self._client.send(out)
        if relay.done:
            relay.surplus = bool(rest)
            self._complete()

    def _on_body(self, relay: BodyRelay, data: bytes, before: bytes = b"") -> None:
        gateway = self._gateway
        self._last_byte_s = gateway.now()
        if self._phase is Phase.FIRST_CHUNK:
            self._move(Phase.BODY)
            gateway.metrics.first_byte.observe(self._last_byte_s - self._started_s, self._route)
        try:
            out = before + relay.feed(data)
        except UpstreamFault:
            self._client.send(before)
            raise
        gateway.metrics.relayed_bytes += len(out)
        self._client.send(out)
        if relay.done:
            self._complete()

    # The end.

    def _complete(self) -> None:
        """The answer was relayed to its end; surplus bytes make the engine's connection useless."""
        head, relay, connection = self._head, self._relay, self._connection
        assert head is not None  # noqa: S101 (completed answers have a head)
        assert relay is not None  # noqa: S101 (and a relay)
        if connection is not None and head.keep_alive and not relay.surplus and connection.clean:
            self._connection = None
            if self._paused:
                connection.resume()
            self._gateway.pool.give_back(connection, self._gateway.now())
        self._end(f"{head.status // 100}xx")
        self._client.finished(close=self._close)

    def _release(self) -> None:
        """Give back what the current attempt holds."""
        if self._lease is not None:
            self._lease.close()
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def _end(self, code: str, *, answer: Answer | None = None) -> None:
        gateway = self._gateway
        self._release()
        self._move(Phase.DONE)
        gateway.exchanges.discard(self)
        if self._admission.facts.stream:
            gateway.stream_ended(self._admission.client)
        gateway.metrics.requests.inc(self._route, code)
        gateway.metrics.duration.observe(gateway.now() - self._started_s, self._route)
        if answer is not None:
            self._client.answered(answer)

    def _move(self, phase: Phase) -> None:
        assert phase in MOVES[self._phase], f"exchange moves from {self._phase} to {phase}"  # noqa: S101
        self._phase = phase


def _failure_answer(failure: Failure, message: str) -> Answer:
    """What a client gets when no byte was sent: 503 when nothing was started, 504 on a timeout, else 502."""
    if failure is Failure.CONNECT:
        return answers.error(503, message, "upstream_unreachable", retry_after_s=RETRY_AFTER_S)
    if failure is Failure.FIRST_BYTE_TIMEOUT:
        return answers.error(504, message, "upstream_timeout")
    return answers.error(502, message, "upstream_error")
