"""The HTTP application: routes, and the middleware that turns errors into OpenAI-shaped answers.

Handlers hold no state of their own; everything is in `Service`. Paths of `contract.names` are for routers, operators
and probes and ask for no API key. Built by `process.py`.
"""

import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Middleware

from forebay.contract import promtext
from forebay.contract.errors import ForebayError, InvalidRequest
from forebay.contract.names import (
    HEADER_REQUEST_ID,
    PATH_CONFIG,
    PATH_DRAIN,
    PATH_EVENTS,
    PATH_HEALTH,
    PATH_LOAD,
    PATH_METRICS,
    PATH_READY,
)
from forebay.engine.server import documents
from forebay.engine.server.clients import Clients
from forebay.engine.server.embeddings import embeddings_handler
from forebay.engine.server.errors import problem_of, problem_of_status
from forebay.engine.server.fields import parse_object
from forebay.engine.server.generate import CHAT, COMPLETIONS, RESPONSES, handler
from forebay.engine.server.openai import parse_detokenize, parse_tokenize
from forebay.engine.server.service import Service
from forebay.engine.server.watch import CLIENT_KEY, REQUEST_ID_KEY, read_body

MAX_REQUEST_ID_CHARS = 128
MAX_EVENTS = 256
MAX_NUMBER_DIGITS = 15
_OPEN_PATHS = frozenset({PATH_HEALTH, PATH_READY, PATH_METRICS, PATH_CONFIG, PATH_LOAD, PATH_EVENTS, PATH_DRAIN})
_log = logging.getLogger(__name__)

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(service: Service, clients: Clients) -> web.Application:
    """The application of one engine."""
    app = web.Application(
        middlewares=[_answer_errors, _authenticate(clients)],
        client_max_size=service.config.max_body_bytes,
    )
    app.on_response_prepare.append(_on_prepare(service))
    app.router.add_post("/v1/chat/completions", handler(service, CHAT))
    app.router.add_post("/v1/completions", handler(service, COMPLETIONS))
    app.router.add_post("/v1/responses", handler(service, RESPONSES))
    app.router.add_post("/v1/embeddings", embeddings_handler(service))
    app.router.add_post("/tokenize", _tokenize(service))
    app.router.add_post("/detokenize", _detokenize(service))
    app.router.add_get("/v1/models", _models(service))
    app.router.add_get("/v1/models/{name:.+}", _model(service))
    app.router.add_get(PATH_HEALTH, _health(service))
    app.router.add_get(PATH_READY, _ready(service))
    app.router.add_get(PATH_METRICS, _metrics(service))
    app.router.add_get(PATH_CONFIG, _config(service))
    app.router.add_get(PATH_LOAD, _load(service))
    app.router.add_get(PATH_EVENTS, _events(service))
    app.router.add_post(PATH_DRAIN, _drain(service))
    return app


def _json(document: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(document), content_type="application/json")


@web.middleware
async def _answer_errors(request: web.Request, handler: Next) -> web.StreamResponse:
    """Every error of a handler becomes an answer; nothing foreign reaches a client."""
    request[REQUEST_ID_KEY] = _request_id(request)
    try:
        return await handler(request)
    except web.HTTPException as error:
        response = problem_of_status(error.status, _status_message(request, error)).response()
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except ForebayError as error:
        return problem_of(error).response()
    except Exception as error:  # noqa: BLE001 - the boundary: a client must get an answer, whatever broke
        _log.exception("request %s failed", request[REQUEST_ID_KEY])
        return problem_of(error).response()


def _status_message(request: web.Request, error: web.HTTPException) -> str:
    if error.status == 404:
        return f"there is no path {request.path[:100]!r}"
    if error.status == 405:
        return f"{request.method} is not allowed on {request.path[:100]!r}; allowed: {error.headers.get('Allow', '')}"
    return error.reason


def _request_id(request: web.Request) -> str:
    """The client's request id when it is short and printable, else a new one."""
    given = request.headers.get(HEADER_REQUEST_ID, "")
    if 0 < len(given) <= MAX_REQUEST_ID_CHARS and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex


def _on_prepare(service: Service) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    async def prepare(request: web.Request, response: web.StreamResponse) -> None:
        response.headers[HEADER_REQUEST_ID] = request.get(REQUEST_ID_KEY, "")
        response.headers.pop("Server", None)
        service.metrics.http_requests.inc(f"{response.status // 100}xx")
        if service.draining:
            response.force_close()

    return prepare


def _authenticate(clients: Clients) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Next) -> web.StreamResponse:
        if request.path not in _OPEN_PATHS:
            client = clients.find(request.headers.get("Authorization", ""))
            if client is None:
                raise InvalidRequest("authorization: a valid API key is needed as a bearer token", status=401)
            request[CLIENT_KEY] = client
        return await handler(request)

    return check


def _tokenize(service: Service) -> Next:
    async def handle(request: web.Request) -> web.StreamResponse:
        text = service.loaded()
        parsed = parse_tokenize(parse_object(await read_body(request, service.config.body_seconds)), text.limits)
        tokens = await service.encode(parsed.prompt)
        return _json({"count": len(tokens), "max_model_len": text.limits.max_sequence_tokens, "tokens": tokens})

    return handle


def _detokenize(service: Service) -> Next:
    async def handle(request: web.Request) -> web.StreamResponse:
        text = service.loaded()
        tokens = parse_detokenize(parse_object(await read_body(request, service.config.body_seconds)), text.limits)
        return _json({"prompt": text.codec.decode_all(tokens)})

    return handle


def _models(service: Service) -> Next:
    async def handle(_request: web.Request) -> web.StreamResponse:
        length = service.resolved.max_sequence_tokens
        return _json(documents.models(service.config.served_names, service.started_s, length))

    return handle


def _model(service: Service) -> Next:
    async def handle(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in service.config.served_names:
            raise InvalidRequest(f"model: {name[:60]!r} is not served here", param="model", status=404)
        return _json(documents.model(name, service.started_s, service.resolved.max_sequence_tokens))

    return handle


def _health(service: Service) -> Next:
    async def handle(_request: web.Request) -> web.StreamResponse:
        failed = service.client.fault is not None
        return _json({"status": "failed" if failed else "ok"}, 503 if failed else 200)

    return handle


def _ready(service: Service) -> Next:
    async def handle(_request: web.Request) -> web.StreamResponse:
        reason = service.unready_reason()
        return _json({"status": reason or "ready"}, 503 if reason else 200)

    return handle


def _metrics(service: Service) -> Next:
    async def handle(_request: web.Request) -> web.StreamResponse:
        service.update_gauges()
        return web.Response(body=service.metrics.render().encode(), headers={"Content-Type": promtext.CONTENT_TYPE})

    return handle


def _config(service: Service) -> Next:
    async def handle(_request: web.Request) -> web.StreamResponse:
        return _json(service.resolved.to_json())

    return handle


def _load(service: Service) -> Next:
    async def handle(_request: web.Request) -> web.StreamResponse:
        return _json(service.load_report().to_json())

    return handle


def _events(service: Service) -> Next:
    async def handle(request: web.Request) -> web.StreamResponse:
        asked = request.query.get("after", "0")
        if not asked.isdecimal() or len(asked) > MAX_NUMBER_DIGITS:
            raise InvalidRequest("after: must be the number of an event", param="after")
        return _json(service.events.after(int(asked), MAX_EVENTS))

    return handle


def _drain(service: Service) -> Next:
    async def handle(_request: web.Request) -> web.StreamResponse:
        if not service.draining:
            _log.info("draining by request: %d requests are open", service.open_requests)
        service.start_drain()
        return _json({"draining": True, "open_requests": service.open_requests})

    return handle
