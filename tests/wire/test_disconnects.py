"""Clients that leave in any phase, through the real router to a real engine with the real small model.

Whatever was cut, pages, slots, sequences and the router's leases are back at the baseline within two seconds, and the
answers of everybody else are those of a quiet engine. The engine is small (four slots, short steps), so that requests
really wait and prompts really take several steps.
"""

import contextlib
import json
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from engine_process import MODEL, EngineProcess, running_engine
from eventually import eventually
from router_process import RouterProcess, StaticEndpoint, router_process

pytestmark = [pytest.mark.wire, pytest.mark.timeout(300)]

SLOTS = 4
BACK_S = 2.0
QUESTIONS = (
    "Name a colour.",
    "Count to three.",
    "What is rain?",
    "Say hello.",
    "Name a fruit.",
    "What is two plus two?",
)
REQUESTS = 200
CUTS = ("head", "body", "waiting", "prefill", "stream")


@dataclass(frozen=True)
class Stack:
    """One engine and a router in front of it."""

    engine: EngineProcess
    router: RouterProcess

    def gauge(self, name: str) -> float:
        """An engine gauge now."""
        return self.engine.metrics()[f"forebay_engine_{name}"]

    def at_rest(self) -> bool:
        """Whether the engine holds no page and no sequence, and the router no lease and no request."""
        return self.engine.pages_at_rest() and not any(end.inflight for end in self.router.report().endpoints)

    def cancelled(self, phase: str) -> float:
        """Requests whose client left in a phase, as the router counts them."""
        return self.router.metric(f'forebay_router_cancelled_total{{phase="{phase}"}}')

    def connect(self) -> socket.socket:
        """A connection to the router."""
        return socket.create_connection(("127.0.0.1", self.router.port), timeout=120)

    def back_at_rest(self) -> None:
        """Fail unless everything is back within `BACK_S`."""
        eventually(self.at_rest, BACK_S, "pages, sequences and leases are back at the baseline", 0.02)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("disconnects")
    with running_engine(folder, max_running=SLOTS, max_batch_tokens=64) as engine:
        endpoints = [StaticEndpoint(f"127.0.0.1:{engine.port}")]
        with router_process(folder, endpoints, models=(MODEL,)) as router:
            eventually(lambda: router.report().endpoints[0].load_age_s is not None, 10, "a load report", 0.05)
            yield Stack(engine, router)


def wire(text: str, max_tokens: int, *, stream: bool) -> bytes:
    """A whole request: head and body."""
    fields = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0}
    body = json.dumps({**fields, "max_tokens": max_tokens, "stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def long_text(number: int) -> str:
    """About 800 tokens that share no prefix with another number's."""
    return f"Story {number}. " + " ".join(f"{number}-{word}" for word in range(160))


def read_events(connection: socket.socket, count: int) -> None:
    """Read until `count` events of a stream have come."""
    received = b""
    while received.count(b"data: ") < count:
        data = connection.recv(65536)
        assert data, f"the stream ended early: {received!r}"
        received += data


def cut(stack: Stack, kind: str, number: int, chance: random.Random) -> None:
    """Send one request and leave in the phase that `kind` names."""
    text = long_text(number) if kind == "prefill" else f"{number}: tell me more."
    request = wire(text, 64, stream=kind == "stream" or chance.random() < 0.5)
    end_of_head = request.index(b"\r\n\r\n") + 4
    with stack.connect() as connection:
        match kind:
            case "head":
                connection.sendall(request[: chance.randrange(1, end_of_head)])
            case "body":
                connection.sendall(request[: chance.randrange(end_of_head, len(request))])
            case "stream":
                connection.sendall(request)
                read_events(connection, chance.randrange(1, 6))
            case _:
                connection.sendall(request)
                connection.settimeout(0.01 + chance.random() * 0.5)
                with contextlib.suppress(TimeoutError):
                    connection.recv(1)


def ask(stack: Stack, question: str) -> str:
    """The whole answer to a question through the router."""
    received = b""
    with stack.connect() as connection:
        connection.sendall(wire(question, 8, stream=False))
        while data := connection.recv(65536):
            received += data
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), received
    return str(json.loads(body)["choices"][0]["message"]["content"])


def test_a_client_that_leaves_the_queue_takes_nothing_from_those_that_run(stack: Stack) -> None:
    stack.back_at_rest()
    with contextlib.ExitStack() as opened:
        running = [opened.enter_context(stack.connect()) for _ in range(SLOTS)]
        for number, connection in enumerate(running):
            connection.sendall(wire(f"{number}: tell me a very long story.", 1000, stream=True))
            read_events(connection, 2)
        with stack.connect() as waiting:
            waiting.sendall(wire("I wait.", 8, stream=False))
            eventually(lambda: stack.gauge("waiting_sequences") == 1, 10, "the fifth request waits", 0.02)
        eventually(lambda: stack.gauge("waiting_sequences") == 0, BACK_S, "the queue is empty", 0.02)
        assert stack.gauge("running_sequences") == SLOTS, "every slot is still in use"
        for connection in running:
            read_events(connection, 2)
    stack.back_at_rest()


def test_a_client_that_leaves_in_the_prefill_ends_it(stack: Stack) -> None:
    stack.back_at_rest()
    with stack.connect() as connection:
        connection.sendall(wire(long_text(1000), 8, stream=False))
        eventually(lambda: stack.gauge("pending_prefill_tokens") > 0, 10, "the prompt is being computed", 0.005)
        assert stack.gauge("running_sequences") == 1
    stack.back_at_rest()
    computed = 'computed_tokens_total{phase="prefill"}'
    before = stack.gauge(computed)
    ask(stack, QUESTIONS[0])
    assert stack.gauge(computed) - before < 100, "nobody goes on with the prompt of a client that left"


def test_two_hundred_requests_half_of_them_cut_leave_no_trace(stack: Stack) -> None:
    stack.back_at_rest()
    quiet = {question: ask(stack, question) for question in QUESTIONS}
    before = {phase: stack.cancelled(phase) for phase in ("headers", "body")}
    kinds = [CUTS[number // 2 % len(CUTS)] if number % 2 else "whole" for number in range(REQUESTS)]
    random.Random(5).shuffle(kinds)

    def one(number: int) -> bool:
        chance = random.Random(number)
        if kinds[number] != "whole":
            cut(stack, kinds[number], number, chance)
            return False
        question = chance.choice(QUESTIONS)
        assert ask(stack, question) == quiet[question], question
        return True

    with ThreadPoolExecutor(24) as pool:
        whole = sum(pool.map(one, range(REQUESTS)))
    assert whole == REQUESTS // 2
    stack.back_at_rest()
    assert {phase: stack.cancelled(phase) > count for phase, count in before.items()} == {"headers": True, "body": True}
    assert {question: ask(stack, question) for question in QUESTIONS} == quiet
    assert stack.engine.process.poll() is None


def test_every_slot_can_be_used_after_all_that(stack: Stack) -> None:
    stack.back_at_rest()
    with contextlib.ExitStack() as opened:
        for number in range(SLOTS):
            connection = opened.enter_context(stack.connect())
            connection.sendall(wire(f"{number}: tell me a very long story.", 1000, stream=True))
            read_events(connection, 2)
        assert stack.gauge("running_sequences") == SLOTS
        assert stack.gauge("waiting_sequences") == 0
    stack.back_at_rest()
