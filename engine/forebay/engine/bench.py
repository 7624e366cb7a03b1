"""Load on a running engine over HTTP: output rate, time to the first token, inter-token time, memory.

One connection a request, all requests on one event loop. While a run lasts, arriving bytes are only stamped and
kept; they are parsed when it is over, so that the client takes little of the machine that it measures. Prompts are
random token ids, so no two share a prefix unless the caller wants it. Works against any server with OpenAI's
`/v1/completions`. Called by `forebay-engine bench` and by the benchmarks of the repository.
"""

import asyncio
import json
import math
import random
import ssl
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

from forebay.contract.errors import InvalidSpec
from forebay.contract.names import PATH_METRICS

PROMPT_IDS = (256, 8192)
"""Token ids of prompts: past the special and byte tokens, within every real vocabulary."""
ANSWER_DEADLINE_S = 900.0
MOST = {"requests": 100_000, "concurrency": 1024, "prompt_tokens": 1 << 20, "output_tokens": 1 << 20}
_RESIDENT_SERIES = "forebay_engine_resident_bytes"


@dataclass(frozen=True, slots=True)
class Target:
    """A server to put load on; `path` is what comes before `/v1`."""

    host: str
    port: int
    is_tls: bool
    path: str
    model: str
    api_key: str = ""

    @property
    def url(self) -> str:
        """Base URL."""
        return f"{'https' if self.is_tls else 'http'}://{self.host}:{self.port}{self.path}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request got. `times_s` are the arrivals of events with text, on the loop's clock, as `sent_s` is.

    `tokens` is what the server counted; `problem` is empty for a whole answer.
    """

    status: int
    sent_s: float
    times_s: tuple[float, ...]
    tokens: int
    text: str
    problem: str

    @property
    def first_token_s(self) -> float:
        """Seconds from the request to its first token."""
        return self.times_s[0] - self.sent_s

    @property
    def inter_token_s(self) -> float:
        """Mean seconds between tokens; an event may carry several."""
        return (self.times_s[-1] - self.times_s[0]) / max(1, self.tokens - 1)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of seconds over requests."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Report:
    """One run. Rates count the whole time from the first request to the last token.

    `inter_token_s` is over the mean of each request; `client_cpu_share` is the part of one CPU that the client took.
    """

    requests: int
    failed: int
    problems: tuple[str, ...]
    wall_s: float
    output_tokens: int
    output_tokens_per_s: float
    first_token_s: Quantiles
    inter_token_s: Quantiles
    request_s: Quantiles
    client_cpu_share: float


def target_of(url: str, model: str, api_key: str = "") -> Target:
    """Raises `InvalidSpec` for anything but an http or https URL with a host."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidSpec(f"url: must be http://HOST:PORT or https://HOST:PORT, not {url!r}", field="url")
    is_tls = parts.scheme == "https"
    return Target(parts.hostname, parts.port or (443 if is_tls else 80), is_tls, parts.path.rstrip("/"), model, api_key)


def random_prompts(count: int, tokens: int, seed: int) -> list[list[int]]:
    """`count` prompts of `tokens` ids each; the same seed gives the same prompts."""
    chance = random.Random(seed)  # noqa: S311 - prompts, not secrets
    return [[chance.randrange(*PROMPT_IDS) for _ in range(tokens)] for _ in range(count)]


def completion_body(model: str, prompt: Sequence[int], output_tokens: int, **fields: Any) -> dict[str, Any]:
    """A greedy streamed request for exactly `output_tokens` tokens."""
    return {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }


class _Exchange(asyncio.Protocol):
    """One request on one connection; keeps each piece of the response with the time it came."""

    def __init__(self, request: bytes, ended: "asyncio.Future[None]", now_s: Callable[[], float]) -> None:
        self.sent_s = 0.0
        self.pieces: list[tuple[float, bytes]] = []
        self.error = ""
        self._request = request
        self._ended = ended
        self._now_s = now_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.sent_s = self._now_s()
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self.pieces.append((self._now_s(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = str(exc) if exc is not None else ""
        if not self._ended.done():
            self._ended.set_result(None)


async def _exchange(target: Target, body: bytes) -> Answer:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    head = (
        f"POST {target.path}/v1/completions HTTP/1.1\r\nHost: {target.host}:{target.port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    if target.api_key:
        head += f"Authorization: Bearer {target.api_key}\r\n"
    request = f"{head}\r\n".encode() + body
    try:
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            transport, exchange = await loop.create_connection(
                lambda: _Exchange(request, ended, time.monotonic),
                target.host,
                target.port,
                ssl=ssl.create_default_context() if target.is_tls else None,
            )
            try:
                await ended
            finally:
                transport.close()
    except (OSError, TimeoutError) as error:
        return Answer(0, 0.0, (), 0, "", f"{type(error).__name__}: {error}")
    return parse_answer(exchange.sent_s, exchange.pieces, exchange.error)


def parse_answer(sent_s: float, pieces: Sequence[tuple[float, bytes]], error: str = "") -> Answer:
    """The answer in the pieces of one HTTP response, each with its time of arrival."""
    whole = b"".join(data for _, data in pieces)
    head, found, rest = whole.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if not found or len(words) < 2 or not words[1].isdigit():
        return Answer(0, sent_s, (), 0, "", error or "the connection was closed without an answer")
    status = int(words[1])
    is_chunked = b"transfer-encoding: chunked" in head.lower()
    if status != 200:
        text = rest.decode(errors="replace")
        return Answer(status, sent_s, (), 0, text, f"status {status}: {text[:200]}")
    return _read_events(sent_s, _payload(pieces, len(head) + 4, is_chunked=is_chunked), error)


def _payload(pieces: Sequence[tuple[float, bytes]], head_bytes: int, *, is_chunked: bool) -> list[tuple[float, bytes]]:
    """The body in the pieces, without the chunk framing; each part with its time of arrival."""
    parts: list[tuple[float, bytes]] = []
    buffer, skipped, wanted = b"", head_bytes, 0
    for when_s, data in pieces:
        skip = min(skipped, len(data))
        skipped -= skip
        if not is_chunked:
            parts.append((when_s, data[skip:]))
            continue
        buffer += data[skip:]
        while buffer:
            if wanted == 0:
                line, found, after = buffer.partition(b"\r\n")
                if not found:
                    break
                # The size counts the data; the line end after it is taken along and cut below.
                wanted, buffer = int(line.split(b";")[0] or b"0", 16) + 2, after
                continue
            taken = buffer[:wanted]
            buffer, wanted = buffer[len(taken) :], wanted - len(taken)
            parts.append((when_s, taken[: max(0, len(taken) + min(0, wanted - 2))]))
    return parts


class _Events:
    """The server-sent events of a completion, read in order; the stream is whole when `[DONE]` has come."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.texts: list[str] = []
        self.tokens = 0
        self.problem = ""
        self.is_whole = False

    def take(self, when_s: float, event: bytes) -> None:
        """One event and when it came."""
        if event == b"data: [DONE]":
            self.is_whole = True
        elif event.startswith(b"data: "):
            self._note(when_s, json.loads(event[6:]))

    def _note(self, when_s: float, document: dict[str, Any]) -> None:
        if "error" in document:
            self.problem = str(document["error"])
        if choices := document.get("choices"):
            self.times_s.append(when_s)
            self.texts.append(choices[0].get("text") or "")
        if counted := document.get("usage"):
            self.tokens = counted["completion_tokens"]


def _read_events(sent_s: float, parts: Sequence[tuple[float, bytes]], error: str) -> Answer:
    read, buffer = _Events(), b""
    for when_s, data in parts:
        *events, buffer = (buffer + data).split(b"\n\n")
        for event in events:
            read.take(when_s, event)
    problem = read.problem
    if not problem and not (read.is_whole and read.times_s):
        problem = error or "the stream ended early"
    return Answer(200, sent_s, tuple(read.times_s), read.tokens, "".join(read.texts), problem)


async def send_all(target: Target, bodies: Sequence[dict[str, Any]], concurrency: int) -> list[Answer]:
    """Send every body, at most `concurrency` at a time; answers in the order of the bodies."""
    waiting = iter(enumerate([json.dumps(body).encode() for body in bodies]))
    answers: dict[int, Answer] = {}

    async def work() -> None:
        for place, body in waiting:
            answers[place] = await _exchange(target, body)

    await asyncio.gather(*(work() for _ in range(min(concurrency, len(bodies)))))
    return [answers[place] for place in range(len(bodies))]


def run_load(target: Target, bodies: Sequence[dict[str, Any]], concurrency: int) -> tuple[Report, list[Answer]]:
    """One run on a loop of its own, summed up."""
    cpu_s, began_s = time.process_time(), time.monotonic()
    answers = uvloop.run(send_all(target, bodies, concurrency))
    wall_s = time.monotonic() - began_s
    cpu_share = (time.process_time() - cpu_s) / wall_s
    return summarize(answers, cpu_share), answers


def summarize(answers: Sequence[Answer], client_cpu_share: float) -> Report:
    """The figures of a run; failed requests count in no figure but `failed`."""
    whole = [answer for answer in answers if not answer.problem]
    problems = tuple(sorted({answer.problem for answer in answers if answer.problem})[:5])
    ends_s = [answer.times_s[-1] for answer in whole]
    wall_s = max(ends_s) - min(answer.sent_s for answer in whole) if whole else 0.0
    tokens = sum(answer.tokens for answer in whole)
    return Report(
        requests=len(answers),
        failed=len(answers) - len(whole),
        problems=problems,
        wall_s=wall_s,
        output_tokens=tokens,
        output_tokens_per_s=tokens / wall_s if wall_s else 0.0,
        first_token_s=quantiles([answer.first_token_s for answer in whole]),
        inter_token_s=quantiles([answer.inter_token_s for answer in whole if answer.tokens > 1]),
        request_s=quantiles([end_s - answer.sent_s for end_s, answer in zip(ends_s, whole, strict=True)]),
        client_cpu_share=client_cpu_share,
    )


def quantiles(values: Sequence[float]) -> Quantiles:
    """Nearest-rank quantiles; zeros when there is nothing."""
    if not values:
        return Quantiles(0.0, 0.0, 0.0, 0.0)
    ordered = sorted(values)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Quantiles(sum(ordered) / len(ordered), rank(0.5), rank(0.95), rank(0.99))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run of the command asks for."""

    requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    seed: int

    def __post_init__(self) -> None:
        for name in ("requests", "concurrency", "prompt_tokens", "output_tokens"):
            if not 1 <= getattr(self, name) <= MOST[name]:
                flag = "--" + name.replace("_", "-")
                raise InvalidSpec(f"{flag} must be from 1 to {MOST[name]}, not {getattr(self, name)}", field=name)


def bench(target: Target, plan: Plan, write: Callable[[str], None], *, as_json: bool) -> int:
    """One run of the command, written as lines or as JSON; exit code 1 when a request failed."""
    prompts = random_prompts(plan.requests, plan.prompt_tokens, plan.seed)
    bodies = [completion_body(target.model, prompt, plan.output_tokens) for prompt in prompts]
    report, _ = run_load(target, bodies, plan.concurrency)
    memory_bytes = resident_bytes(target)
    if as_json:
        write(json.dumps({**asdict(plan), **report_document(report, memory_bytes)}))
    else:
        write("\n".join(report_lines(report, memory_bytes)))
    return 1 if report.failed else 0


def first_model(target: Target) -> Target:
    """The target with a model name: its own, else the first that the server lists. Raises `InvalidSpec`."""
    if target.model:
        return target
    try:
        listed = json.loads(_get(target, "/v1/models"))["data"]
        return replace(target, model=listed[0]["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InvalidSpec(f"url: {target.url} lists no models: {error}", field="url") from error


def _get(target: Target, path: str) -> bytes:
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    request = urllib.request.Request(target.url + path, headers=headers)  # noqa: S310 - the scheme was checked
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 - as above
        return bytes(response.read())


def resident_bytes(target: Target) -> int | None:
    """Resident memory of all processes of an engine, as its metrics say; None for a server that does not."""
    try:
        lines = _get(target, PATH_METRICS).decode().splitlines()
    except OSError:
        return None
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(_RESIDENT_SERIES)]
    return int(sum(values)) if values else None


def report_document(report: Report, memory_bytes: int | None) -> dict[str, Any]:
    """The report as JSON."""
    return {**asdict(report), "resident_bytes": memory_bytes}


def report_lines(report: Report, memory_bytes: int | None) -> list[str]:
    """The report for a person; times in milliseconds."""
    counts = f"{report.requests} requests, {report.failed} failed, {report.wall_s:.2f} s"
    lines = [f"{counts}, {report.output_tokens} tokens, {report.output_tokens_per_s:.1f} tokens/s"]
    for name, spread in (
        ("time to first token", report.first_token_s),
        ("inter-token time", report.inter_token_s),
        ("whole request", report.request_s),
    ):
        lines.append(
            f"{name + ', ms':24} mean {spread.mean * 1e3:9.2f}  p50 {spread.p50 * 1e3:9.2f}  "
            f"p95 {spread.p95 * 1e3:9.2f}  p99 {spread.p99 * 1e3:9.2f}"
        )
    memory = "not reported" if memory_bytes is None else f"{memory_bytes / 1e6:.0f} MB"
    lines.append(f"resident memory {memory}; the client took {report.client_cpu_share:.0%} of one CPU")
    return lines + [f"problem: {problem}" for problem in report.problems]
