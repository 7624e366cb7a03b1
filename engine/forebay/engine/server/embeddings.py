"""The handler of /v1/embeddings: inputs to vectors, for models that declare how a sentence vector is made.

Inputs run as sequences without an answer, at most `max_running` of a request at a time, so that a large batch does
not fill the queue. Routed to by `app.py`.
"""

import base64
import math
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

import orjson
from aiohttp import web

from forebay.contract.errors import InvalidRequest
from forebay.engine.loader.metadata import Pooling
from forebay.engine.messages import Add
from forebay.engine.request import RequestKind, SamplingParams
from forebay.engine.server.choices import ended_without_answer
from forebay.engine.server.clients import Client
from forebay.engine.server.core_client import End, Group
from forebay.engine.server.fields import parse_object
from forebay.engine.server.generate import Handler
from forebay.engine.server.openai import EmbedRequest, parse_embed
from forebay.engine.server.service import Service, check_length
from forebay.engine.server.watch import read_body, watched

_ENDPOINT = "embeddings"
_SERVED_POOLING = "last"


def embeddings_handler(service: Service) -> Handler:
    """The handler of /v1/embeddings."""

    async def handle(request: web.Request) -> web.StreamResponse:
        with watched(service, _ENDPOINT, request) as watch:
            client, limits = watch.client, service.loaded().limits
            parsed = parse_embed(parse_object(await read_body(request, service.config.body_seconds)), limits)
            pooling = _served_pooling(service)
            watch.phase = "prepare"
            prompts = await _encode(service, parsed)
            watch.prompt_tokens = sum(map(len, prompts))
            client.charge(watch.prompt_tokens, service.clock.monotonic_s())
            watch.phase = "waiting"
            vectors, cached = await _run(service, client, prompts, watch.began_s)
            service.metrics.prompt_tokens.inc(by=watch.prompt_tokens)
            service.metrics.cached_tokens.inc(by=cached)
            watch.outcome = "stop"
        if pooling.normalise:
            vectors = [unit_length(vector) for vector in vectors]
        body = orjson.dumps(_document(parsed, vectors, watch.prompt_tokens))
        return web.Response(body=body, content_type="application/json")

    return handle


def _served_pooling(service: Service) -> Pooling:
    pooling = service.pooling
    if pooling is None:
        raise InvalidRequest(
            "model: declares no pooling, so it has no embeddings; use a model made for them", param="model"
        )
    if pooling.kind != _SERVED_POOLING:
        raise InvalidRequest(f"model: pools by {pooling.kind}, this engine by {_SERVED_POOLING} token", param="model")
    return pooling


async def _encode(service: Service, parsed: EmbedRequest) -> list[list[int]]:
    limits = service.loaded().limits
    prompts = []
    for item in parsed.inputs:
        tokens = await service.encode(item)
        check_length(len(tokens), "input", 1, "input", limits)
        prompts.append(tokens)
    return prompts


async def _run(
    service: Service, client: Client, prompts: Sequence[Sequence[int]], began_s: float
) -> tuple[list[Sequence[float]], int]:
    """The vectors of all prompts, and how many of their tokens came from the prefix cache."""
    ends: dict[int, End] = {}
    with service.client.group() as group:
        waiting = deque(enumerate(prompts))
        while len(ends) < len(prompts):
            for _ in range(min(len(waiting), service.config.max_running - group.size)):
                _submit(service, client, group, *waiting.popleft(), began_s)
            ends.update({item.index: item.end for item in await group.next() if item.end is not None})
    ordered = [ends[index] for index in range(len(prompts))]
    for end in ordered:
        if not end.vector:
            raise ended_without_answer(end)
    return [end.vector for end in ordered], sum(end.cached_tokens for end in ordered)


def _submit(service: Service, client: Client, group: Group, index: int, prompt: Sequence[int], began_s: float) -> None:
    add = Add(
        request_id=0,
        prompt=tuple(prompt),
        sampling=SamplingParams(),
        max_new_tokens=1,
        stop_token_ids=(),
        ignore_eos=True,
        tenant=client.name,
        priority=0,
        deadline_s=began_s + service.config.max_seconds,
        kind=RequestKind.EMBED,
    )
    group.submit(index, add.with_id)


def unit_length(vector: Sequence[float]) -> list[float]:
    """The vector scaled to length 1; a zero vector stays."""
    length = math.sqrt(math.fsum(value * value for value in vector))
    return [value / length for value in vector] if length else list(vector)


def _document(parsed: EmbedRequest, vectors: Sequence[Sequence[float]], tokens: int) -> dict[str, Any]:
    shape = _base64 if parsed.as_base64 else list
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": shape(vector)} for index, vector in enumerate(vectors)
        ],
        "model": parsed.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _base64(vector: Sequence[float]) -> str:
    """Little-endian fp32 in base64, as OpenAI's client asks for."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
