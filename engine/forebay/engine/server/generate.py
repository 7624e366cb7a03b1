"""The completion endpoints: body to tokens to answer, streamed or whole.

Holds: no byte of a stream is sent before the core has accepted the request and given a token, so refusals keep their
status; however the handler ends, the group aborts what still runs; an error after the first byte is an error event
and a cut connection, never a clean end. Routed to by `app.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from aiohttp import web

from forebay.contract.errors import Blame, Cancelled, ForebayError, InvalidRequest, Overloaded
from forebay.engine.messages import Add
from forebay.engine.server.choices import Choice, Delta
from forebay.engine.server.core_client import Group
from forebay.engine.server.documents import ChunkWriter, Head, answer, event, usage
from forebay.engine.server.errors import Unavailable, problem_of
from forebay.engine.server.fields import parse_object
from forebay.engine.server.openai import GenerateRequest, RequestLimits, parse_chat, parse_completion
from forebay.engine.server.service import LoadedText, Service, check_length

Parse = Callable[[dict[str, Any], RequestLimits], GenerateRequest]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_LAST_WORDS_S = 1.0
TENANT_KEY = web.RequestKey("tenant", str)


@dataclass(slots=True)
class Exchange:
    """One completion request on its way.

    `began_s` is when its head was read, on the monotonic clock; `failure` is the outcome of a stream that was cut.
    """

    service: Service
    endpoint: str
    tenant: str
    began_s: float
    text: LoadedText
    prompts: list[list[int]] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    last_token_s: float = 0.0
    failure: str = ""


def chat_handler(service: Service) -> Handler:
    """The handler of /v1/chat/completions."""
    return _handler(service, "chat", parse_chat)


def completion_handler(service: Service) -> Handler:
    """The handler of /v1/completions."""
    return _handler(service, "completions", parse_completion)


def _handler(service: Service, endpoint: str, parse: Parse) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        began_s = service.clock.monotonic_s()
        outcome = "cancelled"
        try:
            with service.request():
                exchange = Exchange(service, endpoint, request[TENANT_KEY], began_s, service.loaded())
                body = await read_body(request, service.config.body_seconds)
                response = await _generate(request, exchange, parse(parse_object(body), exchange.text.limits))
            outcome = exchange.failure or _ending(exchange.choices)
        except ForebayError as error:
            outcome = _outcome(error)
            raise
        except Exception:
            outcome = "error"
            raise
        finally:
            service.metrics.requests.inc(endpoint, outcome)
            service.metrics.request_s.observe(service.clock.monotonic_s() - began_s)
        return response

    return handle


def _ending(choices: Sequence[Choice]) -> str:
    """The metric label of a whole answer: the least complete of its choices decides."""
    endings = set()
    for choice in choices:
        if choice.outcome is None:
            return "cancelled"
        endings.add("deadline" if choice.outcome.stop_reason == "deadline" else choice.outcome.finish_reason)
    return next(ending for ending in ("deadline", "length", "stop") if ending in endings)


def _outcome(error: ForebayError) -> str:
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


async def _generate(request: web.Request, exchange: Exchange, parsed: GenerateRequest) -> web.StreamResponse:
    service = exchange.service
    budgets = []
    for prompt in parsed.prompts:
        tokens = await service.encode(prompt)
        exchange.prompts.append(tokens)
        budgets.append(
            check_length(
                len(tokens), parsed.prompt_field, parsed.max_tokens, parsed.max_tokens_field, exchange.text.limits
            )
        )
    is_chat = exchange.endpoint == "chat"
    head = Head(
        answer_id=service.answer_id("chatcmpl" if is_chat else "cmpl"),
        created_s=int(service.clock.wall_s()),
        model=parsed.model,
        is_chat=is_chat,
    )
    with service.client.group() as group:
        _submit(group, exchange, parsed, budgets)
        deltas = _deltas(group, exchange)
        if parsed.stream:
            return await _stream(request, exchange, deltas, ChunkWriter(head, include_usage=parsed.include_usage))
        return await _whole(exchange, deltas, head)


def _submit(group: Group, exchange: Exchange, parsed: GenerateRequest, budgets: Sequence[int]) -> None:
    """One sequence for each prompt and answer. Answer i of a prompt samples with the request's seed plus i."""
    service = exchange.service
    first_seed = service.seed() if parsed.seed is None else parsed.seed
    deadline_s = exchange.began_s + service.config.max_seconds
    for place, (tokens, budget) in enumerate(zip(exchange.prompts, budgets, strict=True)):
        for answer_number in range(parsed.n):
            index = place * parsed.n + answer_number
            exchange.choices.append(Choice(index, exchange.text.codec.detokenizer(), parsed.stop))
            template = Add(
                request_id=0,
                prompt=tuple(tokens),
                sampling=replace(parsed.sampling, seed=(first_seed + answer_number) & ((1 << 64) - 1)),
                max_new_tokens=budget,
                stop_token_ids=exchange.text.eos_ids,
                ignore_eos=parsed.ignore_eos,
                tenant=exchange.tenant,
                priority=0,
                deadline_s=deadline_s,
            )
            group.submit(index, template.with_id)


async def _deltas(group: Group, exchange: Exchange) -> AsyncIterator[list[Delta]]:
    """Batches of deltas until every choice has ended."""
    while any(choice.outcome is None for choice in exchange.choices):
        batch = []
        for progress in await group.next():
            if progress.tokens:
                _note_tokens(exchange, len(progress.tokens))
            delta = exchange.choices[progress.index].take(progress)
            if delta.outcome is not None and progress.end is None:
                group.abort(progress.index)
            batch.append(delta)
        yield batch
    metrics = exchange.service.metrics
    metrics.prompt_tokens.inc(by=sum(map(len, exchange.prompts)))
    metrics.cached_tokens.inc(by=sum(choice.cached_tokens for choice in exchange.choices))


def _note_tokens(exchange: Exchange, count: int) -> None:
    now_s = exchange.service.clock.monotonic_s()
    metrics = exchange.service.metrics
    metrics.generated_tokens.inc(by=count)
    if exchange.last_token_s == 0.0:
        metrics.first_token_s.observe(now_s - exchange.began_s)
    elif len(exchange.choices) == 1:
        metrics.token_gap_s.observe((now_s - exchange.last_token_s) / count)
    exchange.last_token_s = now_s


def _usage(exchange: Exchange) -> dict[str, Any]:
    per_prompt = len(exchange.choices) // len(exchange.prompts)
    cached = sum(choice.cached_tokens for choice in exchange.choices[::per_prompt])
    completion = sum(choice.tokens for choice in exchange.choices)
    return usage(sum(map(len, exchange.prompts)), completion, cached)


async def _whole(exchange: Exchange, deltas: AsyncIterator[list[Delta]], head: Head) -> web.Response:
    texts: list[list[str]] = [[] for _ in exchange.choices]
    async for batch in deltas:
        for delta in batch:
            texts[delta.index].append(delta.text)
    outcomes = [choice.outcome for choice in exchange.choices]
    document = answer(head, ["".join(parts) for parts in texts], outcomes, _usage(exchange))
    return web.Response(body=orjson.dumps(document), content_type="application/json")


async def _stream(
    request: web.Request, exchange: Exchange, deltas: AsyncIterator[list[Delta]], writer: ChunkWriter
) -> web.StreamResponse:
    stream = EventStream(request, exchange.service.config.write_seconds)
    try:
        async for batch in deltas:
            await stream.send(b"".join(map(writer.delta, batch)))
        await stream.send(writer.end(_usage(exchange)))
    except Cancelled:
        raise
    except ForebayError as error:
        if not stream.response.prepared:
            raise
        exchange.failure = _outcome(error)
        await stream.cut(event(problem_of(error).document()))
    return stream.response


class EventStream:
    """Server-sent events to one client; the head goes out with the first bytes.

    A client that left, or leaves the stream unread for `write_seconds`, is `Cancelled`.
    """

    def __init__(self, request: web.Request, write_seconds: float) -> None:
        self.response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        self._request = request
        self._write_seconds = write_seconds

    async def send(self, events: bytes) -> None:
        """Write events, possibly none."""
        if not events:
            return
        try:
            async with asyncio.timeout(self._write_seconds):
                if not self.response.prepared:
                    await self.response.prepare(self._request)
                await self.response.write(events)
        except ConnectionError as error:
            raise Cancelled("the client left during the stream") from error
        except TimeoutError as error:
            # Closing would wait for the client to read what is buffered.
            if self._request.transport is not None:
                self._request.transport.abort()
            raise Cancelled("the client does not read its stream") from error

    async def cut(self, last_words: bytes) -> None:
        """Say why the stream ends, and end it so that nobody takes it for a complete one."""
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self.response.write(last_words)
        if self._request.transport is not None:
            self._request.transport.close()
