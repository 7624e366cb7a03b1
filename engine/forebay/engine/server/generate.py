"""The handlers of the endpoints that generate: body in, answer out, streamed or whole.

Holds: no byte of a stream is sent before the core has accepted the request and given a token, so refusals keep their
status; an error after the first byte is an error event and a cut connection, never a clean end. Routed to by `app.py`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from forebay.contract.errors import Cancelled, ForebayError
from forebay.engine.server.answers import Answer, Form, Usage
from forebay.engine.server.choices import Choice, Delta
from forebay.engine.server.documents import ChatForm, Head
from forebay.engine.server.errors import problem_of
from forebay.engine.server.exchange import Exchange
from forebay.engine.server.fields import parse_object
from forebay.engine.server.limits import RequestLimits
from forebay.engine.server.openai import GenerateRequest, parse_chat, parse_completion
from forebay.engine.server.responses_documents import ResponseHead, ResponsesForm
from forebay.engine.server.responses_request import parse_responses
from forebay.engine.server.service import Service
from forebay.engine.server.shapes import Outcome
from forebay.engine.server.stream import EventStream
from forebay.engine.server.watch import outcome_of, read_body, watched
from forebay.engine.structured.outcome import INCOMPLETE_HEADER

Parse = Callable[[dict[str, Any], RequestLimits], GenerateRequest]
MakeForm = Callable[[Exchange, GenerateRequest], Form]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SPECULATION_HEADER = "x-forebay-speculation"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A generating endpoint: its name in metrics, how its bodies are read, and the shape of its answers."""

    name: str
    parse: Parse
    form: MakeForm


def _chat_form(prefix: str, *, is_chat: bool) -> MakeForm:
    def make(exchange: Exchange, parsed: GenerateRequest) -> Form:
        service = exchange.service
        created_s = int(service.clock.wall_s())
        head = Head(service.answer_id(prefix), created_s, parsed.model, is_chat, parsed.logprobs)
        return ChatForm(head, exchange.text.codec, include_usage=parsed.include_usage)

    return make


CHAT = Endpoint("chat", parse_chat, _chat_form("chatcmpl", is_chat=True))
COMPLETIONS = Endpoint("completions", parse_completion, _chat_form("cmpl", is_chat=False))


def _responses_form(exchange: Exchange, parsed: GenerateRequest) -> Form:
    service = exchange.service
    created_s = int(service.clock.wall_s())
    has_logprobs = parsed.logprobs is not None
    head = ResponseHead(service.answer_id("resp"), created_s, parsed.model, parsed.echo, has_logprobs)
    return ResponsesForm(head, exchange.text.codec)


RESPONSES = Endpoint("responses", parse_responses, _responses_form)


def handler(service: Service, endpoint: Endpoint) -> Handler:
    """The handler of one generating endpoint."""

    async def handle(request: web.Request) -> web.StreamResponse:
        with watched(service, endpoint.name, request) as watch:
            exchange = Exchange(service, watch, service.loaded())
            exchange.body = parse_object(await read_body(request, service.config.body_seconds))
            parsed = endpoint.parse(exchange.body, exchange.text.limits)
            response = await _generate(request, exchange, endpoint, parsed)
            watch.outcome = exchange.failure or _ending(exchange.choices)
        return response

    return handle


def _ending(choices: Sequence[Choice]) -> str:
    """The metric label of a whole answer: the least complete of its choices decides."""
    endings = set()
    for choice in choices:
        if choice.outcome is None:
            return "cancelled"
        endings.add("deadline" if choice.outcome.stop_reason == "deadline" else choice.outcome.finish_reason)
    return next(ending for ending in ("deadline", "length", "tool_calls", "stop") if ending in endings)


async def _generate(
    request: web.Request, exchange: Exchange, endpoint: Endpoint, parsed: GenerateRequest
) -> web.StreamResponse:
    await exchange.prepare(parsed)
    form = endpoint.form(exchange, parsed)
    async with exchange.grammar(parsed) as grammar:
        return await _answer(request, exchange, parsed, form, grammar)


async def _answer(
    request: web.Request, exchange: Exchange, parsed: GenerateRequest, form: Form, grammar: str
) -> web.StreamResponse:
    with exchange.service.client.group() as group:
        exchange.submit(group, parsed, grammar)
        deltas = exchange.deltas(group)
        if parsed.stream:
            return await _stream(request, exchange, parsed, deltas, form)
        return await _whole(request, exchange, parsed, deltas, form)


async def _whole(
    request: web.Request, exchange: Exchange, parsed: GenerateRequest, deltas: AsyncIterator[list[Delta]], form: Form
) -> web.Response:
    answers = [Answer("", Outcome("length", None)) for _ in exchange.choices]
    texts: list[list[str]] = [[] for _ in exchange.choices]
    async for batch in deltas:
        for delta in batch:
            texts[delta.index].append(delta.text)
            answers[delta.index].take(delta)
    for answer, parts in zip(answers, texts, strict=True):
        answer.text = "".join(parts)
    shown = exchange.best(answers, parsed)
    used = exchange.usage()
    document = form.whole(shown, used)
    if (record := await exchange.record(request.path, parsed)) is not None:
        document["forebay_record"] = record
    return web.Response(
        body=orjson.dumps(document), content_type="application/json", headers=_extra_headers(shown, used)
    )


def _extra_headers(answers: Sequence[Answer], used: Usage) -> dict[str, str]:
    headers = {}
    if any(answer.outcome.is_incomplete for answer in answers):
        headers[INCOMPLETE_HEADER] = "true"
    if used.speculation is not None:
        drafted, accepted, steps, _ = used.speculation
        headers[SPECULATION_HEADER] = f"drafted={drafted}, accepted={accepted}, steps={steps}"
    return headers


async def _stream(
    request: web.Request, exchange: Exchange, parsed: GenerateRequest, deltas: AsyncIterator[list[Delta]], form: Form
) -> web.StreamResponse:
    stream = EventStream(request, exchange.service.config.write_seconds)
    writer = form.writer()
    try:
        async for batch in deltas:
            await stream.send(b"".join(map(writer.delta, batch)))
        await stream.send(writer.end(exchange.usage(), await exchange.record(request.path, parsed)))
    except Cancelled:
        raise
    except ForebayError as error:
        if not stream.response.prepared:
            raise
        exchange.failure = outcome_of(error)
        await stream.cut(writer.failed(problem_of(error).document()))
    return stream.response
