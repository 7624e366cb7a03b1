"""Bad HTTP requests that an engine, and a router in front of one, must refuse with a reason and survive.

Each case is the raw bytes of one connection, the statuses that are right, and words that the OpenAI-shaped error
must contain. `MODEL` is the served model. `routed` is False where a router may rightly answer otherwise: it forwards
bodies without judging them, so the engine's answer comes back, but paths and hop-by-hop framing are its own.
"""

import contextlib
import json
import socket
from dataclasses import dataclass
from typing import Any

from engine_process import MAX_BODY_BYTES, MAX_PROMPT_TOKENS, MODEL

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


@dataclass(frozen=True)
class BadRequest:
    """One bad connection and what must come of it."""

    name: str
    raw: bytes
    statuses: tuple[int, ...]
    words: tuple[str, ...]
    routed: bool = True


def post(path: str, body: bytes, headers: tuple[str, ...] = ()) -> bytes:
    """The bytes of a POST that closes its connection."""
    lines = [f"POST {path} HTTP/1.1", "Host: test", "Connection: close", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _chat(name: str, *words: str, status: int = 400, **fields: Any) -> BadRequest:
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 4, **fields}
    body = {key: value for key, value in body.items() if value is not ...}
    return BadRequest(name, post(CHAT, json.dumps(body).encode()), (status,), words)


def _prompt(name: str, prompt: Any, *words: str, **fields: Any) -> BadRequest:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, **fields}
    return BadRequest(name, post(COMPLETIONS, json.dumps(body).encode()), (400,), words)


def _body(name: str, body: bytes, *words: str, status: int = 400, path: str = CHAT) -> BadRequest:
    return BadRequest(name, post(path, body), (status,), words)


def _text(fields: str) -> bytes:
    """A chat body with JSON text that Python's writer would not produce."""
    return f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "x"}}], {fields}}}'.encode()


def _raw(name: str, raw: bytes, statuses: tuple[int, ...], *words: str, routed: bool = False) -> BadRequest:
    return BadRequest(name, raw, statuses, words, routed)


BODIES: tuple[BadRequest, ...] = (
    _body("an empty body", b"", "body"),
    _body("text that is not JSON", b"hello", "JSON"),
    _body("JSON cut short", b'{"model": "' + MODEL.encode(), "JSON"),
    _body("two JSON documents", b"{} {}", "JSON"),
    _body("an array for a body", b"[]", "object"),
    _body("null for a body", b"null", "object"),
    _body("a string for a body", b'"x"', "object"),
    _body("NaN for a number", _text('"temperature": NaN'), "JSON"),
    _body("Infinity for a number", _text('"temperature": Infinity'), "JSON"),
    _body("invalid UTF-8", b'{"model": "\xff\xfe"}', "JSON"),
    _body("a raw NUL in a string", b'{"model": "a\0b"}', "JSON"),
    _body("a lone surrogate", _text('"stop": "\\ud800"'), "JSON"),
    _body("arrays nested 100,000 deep", b"[" * 100_000, "JSON"),
    _body("objects nested 20,000 deep", b'{"a":' * 20_000 + b"1" + b"}" * 20_000, "JSON"),
    _body("a field nested 2,000 deep", _text('"metadata": ' + "[" * 2000 + "]" * 2000), "JSON"),
    _body("a number of 5,000 digits", _text('"max_tokens": ' + "9" * 5000), "number"),
    _body("a huge exponent", _text('"temperature": 1e999'), "JSON"),
    _body("a negative huge exponent", _text('"seed": -1e300'), "seed"),
    _chat("no model", "model", model=...),
    _chat("an unknown model", "nope", status=404, model="nope"),
    _chat("a number for a model", "model", model=5),
    _chat("a model with a NUL", "model", status=404, model="a\0b"),
    _chat("no messages", "messages", messages=...),
    _chat("empty messages", "messages", messages=[]),
    _chat("a string for messages", "messages", messages="hi"),
    _chat("a string for a message", "messages[0]", messages=["hi"]),
    _chat("an unknown role", "messages[0].role", messages=[{"role": "wizard", "content": "x"}]),
    _chat("no content", "messages[0].content", messages=[{"role": "user"}]),
    _chat("a number for content", "messages[0].content", messages=[{"role": "user", "content": 7}]),
    _chat(
        "an image",
        "messages[0].content[0].type",
        messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
    ),
    _chat("max_tokens 0", "max_tokens", "from 1", max_tokens=0),
    _chat("max_tokens negative", "max_tokens", max_tokens=-1),
    _chat("max_tokens 10^9", "max_tokens", max_tokens=10**9),
    _chat("max_tokens 10^30", "max_tokens", max_tokens=10**30),
    _chat("max_tokens 1.5", "max_tokens", max_tokens=1.5),
    _chat("max_tokens true", "max_tokens", max_tokens=True),
    _chat("max_tokens a string", "max_tokens", max_tokens="10"),
    _chat("max_completion_tokens 0", "max_completion_tokens", max_completion_tokens=0, max_tokens=...),
    _chat("two different token limits", "max_completion_tokens", max_completion_tokens=5),
    _chat("n 0", "n:", n=0),
    _chat("n 10^9", "n:", n=10**9),
    _chat("temperature above 2", "temperature", temperature=2.5),
    _chat("temperature below 0", "temperature", temperature=-0.1),
    _chat("temperature an array", "temperature", temperature=[1]),
    _chat("top_p 0", "top_p", top_p=0),
    _chat("top_p above 1", "top_p", top_p=1.1),
    _chat("top_k negative", "top_k", top_k=-5),
    _chat("top_k above the vocabulary", "top_k", top_k=10**7),
    _chat("seed a string", "seed", seed="x"),
    _chat("seed 2^64", "seed", seed=2**64),
    _chat("stop a number", "stop", stop=3),
    _chat("an empty stop", "stop", stop=""),
    _chat("too many stops", "stop", stop=["a", "b", "c", "d", "e"]),
    _chat("a number among stops", "stop", stop=["a", 1]),
    _chat("a very long stop", "stop", stop="x" * 10_000),
    _chat("stream a string", "stream", stream="yes"),
    _chat("stream_options without stream", "stream_options", stream_options={"include_usage": True}),
    _chat("an unknown stream option", "stream_options.x", stream=True, stream_options={"x": 1}),
    _chat("alternatives without logprobs", "top_logprobs", top_logprobs=2),
    _chat("a bias of no token", "logit_bias", logit_bias={"many": 1}),
    _chat("a tool that is no function", "tools[0].type", tools=[{"type": "search"}]),
    _chat("a response format", "response_format.type", response_format={"type": "yaml"}),
    _chat("a presence penalty", "presence_penalty", presence_penalty=2.5),
    _chat("a misspelt field", "temprature", "did you mean temperature", temprature=0.5),
    _chat(
        "a prompt that is too long",
        "messages",
        messages=[{"role": "user", "content": "ab " * (MAX_PROMPT_TOKENS + 10)}],
    ),
    _chat("more tokens than fit", "max_tokens", max_tokens=8190),
    _prompt("an empty prompt", "", "prompt"),
    _prompt("null for a prompt", None, "prompt"),
    _prompt("an object for a prompt", {"a": 1}, "prompt"),
    _prompt("no prompts", [], "prompt"),
    _prompt("an empty list of token ids", [[]], "prompt"),
    _prompt("a negative token id", [1, -2], "prompt", "item 1"),
    _prompt("a token id above the vocabulary", [1, 10**6], "prompt", "item 1"),
    _prompt("token ids mixed with text", [1, "x"], "prompt"),
    _prompt("too many token ids", [5] * (MAX_PROMPT_TOKENS + 1), "prompt"),
    _prompt("too many prompts", ["x"] * 9, "prompt"),
    _prompt("too many answers", ["x"] * 4, "n:", n=4),
    _prompt("echo", "x", "echo", echo=True),
    _prompt("a suffix", "x", "suffix", suffix="y"),
    _prompt("best_of below n", "x", "best_of", n=2, best_of=1),
)

FRAMING: tuple[BadRequest, ...] = (
    _body("a body over the limit", b"x" * (MAX_BODY_BYTES + 1), "larger", status=413),
    _raw(
        "a declared length over the limit",
        f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: {10**15}\r\n\r\n".encode(),
        (400, 413),
        "larger",
    ),
    _raw(
        "both Content-Length and Transfer-Encoding",
        f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode(),
        (400,),
        "Transfer-Encoding",
        routed=True,
    ),
    _raw(
        "two Content-Lengths",
        f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}".encode(),
        (400,),
        "Content-Length",
        routed=True,
    ),
    _raw(
        "a Content-Length that is no number",
        f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: ten\r\n\r\n".encode(),
        (400,),
        "Content-Length",
        routed=True,
    ),
    _raw(
        "a bad chunk size",
        f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".encode(),
        (400,),
        "malformed",
    ),
    _raw(
        "a header of 100 KB", b"GET /health HTTP/1.1\r\nHost: t\r\nX-Big: " + b"a" * 100_000 + b"\r\n\r\n", (400, 431)
    ),
    _raw("1,000 headers", b"GET /health HTTP/1.1\r\nHost: t\r\n" + b"X-A: b\r\n" * 1000 + b"\r\n", (400, 431)),
    _raw("a request line of 100 KB", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: t\r\n\r\n", (400, 414, 431)),
    _raw("bytes that are not HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", (400,)),
    _raw("an unknown method", b"BREW /v1/models HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", (400, 405, 501)),
    _raw("an unknown version", b"GET /health HTTP/9.9\r\nHost: t\r\n\r\n", (400, 505)),
    _raw("a NUL in a header", b"GET /health HTTP/1.1\r\nHost: t\r\nX-A: a\0b\r\n\r\n", (400,)),
    _raw("a header without a colon", b"GET /health HTTP/1.1\r\nHost: t\r\nnonsense\r\n\r\n", (400,)),
    _raw("an unknown path", post("/v1/nothing", b"{}"), (404,), "/v1/nothing"),
    _raw("the wrong method", f"GET {CHAT} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n".encode(), (405,), "POST"),
    _raw("a compressed body", post(CHAT, b"\x1f\x8b\x08", ("Content-Encoding: gzip",)), (415,), "content-encoding"),
)

ALL: tuple[BadRequest, ...] = BODIES + FRAMING


def exchange(host: str, port: int, raw: bytes, timeout_s: float = 30.0) -> tuple[int, bytes]:
    """Send `raw` and read until the server closes or has sent a whole answer; returns status and body."""
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        # The server may answer and close before it has read everything.
        with contextlib.suppress(ConnectionError):
            connection.sendall(raw)
        received = bytearray()
        while not _is_whole(received):
            try:
                data = connection.recv(65536)
            except ConnectionError:
                break
            if not data:
                break
            received += data
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1."), f"no HTTP answer but {bytes(received[:200])!r}"
    return int(head.split(b" ", 2)[1]), body


def _is_whole(received: bytearray) -> bool:
    head, mark, body = bytes(received).partition(b"\r\n\r\n")
    if not mark:
        return False
    lengths = [line.split(b":", 1)[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return bool(lengths) and len(body) >= int(lengths[0])
