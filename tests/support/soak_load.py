"""Requests of the soak test: a fixed set of cases with answers known beforehand, bad requests, and clients that leave.

Every request is made from its number alone, so a failure can be repeated. Cases mix lengths, greedy and seeded
sampling, schemas, regular expressions, speculation, several answers and log probabilities. Used by `tests/soak`.
"""

import contextlib
import enum
import json
import random
import socket
from dataclasses import dataclass
from typing import Any, Final

from engine_process import MODEL

CUT_SHARE: Final = 0.2
BAD_SHARE: Final = 0.05
TIMEOUT_S: Final = 120.0
PHASES: Final = ("head", "body", "waiting", "stream")
PERSON: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


class Kind(enum.StrEnum):
    """What becomes of a request."""

    WHOLE = "whole"
    CUT = "cut"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Bad:
    """A request that must be refused with one of `statuses`."""

    body: bytes
    statuses: frozenset[int]
    path: str = "/v1/chat/completions"


def chat(text: str, max_tokens: int, **fields: Any) -> dict[str, Any]:
    """The body of a greedy request, unless `fields` say otherwise."""
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": max_tokens, **fields}


def long_text(number: int, words: int) -> str:
    """A text of about seven tokens a word that shares no beginning with another number's."""
    return f"Story {number}. " + " ".join(f"{number}-{word}" for word in range(words))


def cases() -> dict[str, dict[str, Any]]:
    """Every case by name; one that names `stream` is only ever asked whole."""
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    ngram = {"kind": "ngram", "max_tokens": 4}
    repeat = "Repeat this line four times: the cat sat on the mat, the cat sat on the mat."
    found = {f"short {number}": chat(f"Name {number} colours.", 4 + 3 * number) for number in range(4)}
    found |= {f"long {words}": chat(long_text(words, words), 6) for words in (16, 50, 120)}
    found |= {f"seeded {seed}": chat("Tell me a story.", 16, temperature=0.9, seed=seed) for seed in (1, 2)}
    return found | {
        "schema": chat("Describe Ann, aged 30.", 60, response_format=schema),
        "schema, warm": chat("Describe Bob.", 60, response_format=schema, temperature=1.0, seed=3),
        "object": chat("Give me a JSON object with one key.", 24, response_format={"type": "json_object"}),
        "regex": chat("Which colours?", 24, structured_outputs={"regex": "(red|green|blue)(, (red|green|blue)){1,3}"}),
        "speculation": chat(repeat, 40, speculation=ngram),
        "speculation, seeded": chat(repeat, 32, speculation=ngram, temperature=0.7, seed=5),
        "speculation under a schema": chat("Describe Cleo.", 60, response_format=schema, speculation=ngram),
        "two answers": chat("Name a fruit.", 8, n=2, temperature=0.8, seed=11),
        "log probabilities": chat("Say hello.", 5, logprobs=True, top_logprobs=2),
        "stop string": chat("Count from one to ten.", 24, stop=[",", "."]),
        "penalties": chat("Say yes.", 16, frequency_penalty=0.8, presence_penalty=0.4),
    }


def bad_requests() -> tuple[Bad, ...]:
    """Requests that no engine may take."""
    invalid = frozenset({400})
    unsupported = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {"type": "string"}}}}
    return (
        Bad(b'{"model": ', invalid),
        Bad(b"\xff\xfe\x00", invalid),
        Bad(json.dumps(chat("x", 4) | {"model": "nobody"}).encode(), frozenset({404})),
        Bad(json.dumps(chat("x", 4, temperature="hot")).encode(), invalid),
        Bad(json.dumps(chat("x", 4, no_such_field=1)).encode(), frozenset({200, 400})),
        Bad(json.dumps(chat("x", 1 << 40)).encode(), invalid),
        Bad(json.dumps(chat("word " * 9000, 4)).encode(), invalid),
        Bad(json.dumps(chat("x", 4, response_format=unsupported)).encode(), invalid),
        Bad(json.dumps(chat("x", 4, structured_outputs={"regex": "(((a"})).encode(), invalid),
        Bad(b"{}", frozenset({404}), "/v1/nothing"),
    )


def kind_of(number: int) -> Kind:
    """What becomes of request `number`."""
    roll = random.Random(f"kind {number}").random()
    if roll < BAD_SHARE:
        return Kind.BAD
    return Kind.CUT if roll < BAD_SHARE + (1 - BAD_SHARE) * CUT_SHARE else Kind.WHOLE


def essence(document: dict[str, Any]) -> list[Any]:
    """What must be the same whenever a case is asked: texts, the likeliest tokens, endings and token counts."""
    answers: list[Any] = [document["usage"]["completion_tokens"]]
    for choice in document["choices"]:
        entries = (choice["logprobs"] or {}).get("content") or []
        likeliest = [[top["token"] for top in entry["top_logprobs"]] for entry in entries]
        answers.append([choice["message"], choice["finish_reason"], likeliest])
    return answers


def exchange(port: int, body: bytes, path: str = "/v1/chat/completions") -> tuple[int, bytes]:
    """One whole request on its own connection: status and body."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(_head(body, path) + body)
        while data := connection.recv(1 << 16):
            received += data
    head, _, rest = received.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), rest


def cut(port: int, number: int, body: dict[str, Any]) -> str:
    """Send request `number` and leave in some phase of it; returns the phase."""
    chance = random.Random(f"cut {number}")
    phase = chance.choice(PHASES)
    data = json.dumps({**body, "stream": phase == "stream"}).encode()
    head = _head(data, "/v1/chat/completions")
    sent = {"head": head[: chance.randrange(1, len(head))], "body": head + data[: chance.randrange(len(data))]}
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(sent.get(phase, head + data))
        if phase == "stream":
            _read_some(connection, chance.randrange(1, 6))
        elif phase == "waiting":
            connection.settimeout(0.005 + chance.random() * 0.8)
            with contextlib.suppress(TimeoutError):
                connection.recv(1)
    return phase


def _head(body: bytes, path: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: soak\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode()


def _read_some(connection: socket.socket, events: int) -> None:
    """Read until some events have come or the stream is over."""
    received = b""
    while received.count(b"data: ") < events and (data := connection.recv(1 << 16)):
        received += data
