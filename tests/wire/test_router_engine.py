"""Real engines behind the real router, with the official client: answers, bad requests, disconnects, a drain."""

import json
import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from bad_http import ALL, BadRequest, exchange
from engine_process import MAX_BODY_BYTES, MODEL, EngineProcess, running_engine
from eventually import eventually
from load import constant_load
from router_process import RouterProcess, StaticEndpoint, router_process

pytestmark = [pytest.mark.wire, pytest.mark.timeout(300)]

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Name three colours."}]


@dataclass
class Stack:
    """Two engines and a router in front of them."""

    engines: list[EngineProcess]
    router: RouterProcess
    client: openai.OpenAI

    def route(self, *engines: EngineProcess) -> None:
        """Route to these engines and wait until the router says so."""
        self.router.write([StaticEndpoint(f"127.0.0.1:{engine.port}") for engine in engines])
        eventually(lambda: self.router.report().epoch == self.router.epoch, 5, "the routes are in use", 0.02)

    def at_rest(self) -> bool:
        """Whether no engine holds a page or a sequence, and the router no request."""
        inflight = sum(endpoint.inflight for endpoint in self.router.report().endpoints)
        return inflight == 0 and all(engine.pages_at_rest() for engine in self.engines)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("routed")
    with ExitStack() as started:
        with ThreadPoolExecutor(2) as pool:
            engines = list(
                pool.map(
                    lambda number: started.enter_context(running_engine(folder / str(number), threads=1)), range(2)
                )
            )
        ends = [StaticEndpoint(f"127.0.0.1:{engine.port}") for engine in engines]
        limit = ("--max-body-bytes", str(MAX_BODY_BYTES))
        router = started.enter_context(router_process(folder, ends, *limit, models=(MODEL, "alias")))
        client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, timeout=120)
        found = Stack(engines, router, client)
        eventually(
            lambda: len([e for e in router.report().endpoints if e.load_age_s is not None]) == 2,
            10,
            "load reports",
            0.05,
        )
        yield found
        client.close()


def test_an_answer_through_the_router_is_the_engines_answer(stack: Stack) -> None:
    direct = stack.engines[0].chat("Name three colours.", max_tokens=24)
    raw = stack.client.chat.completions.with_raw_response.create(
        model=MODEL, messages=MESSAGES, max_tokens=24, temperature=0
    )
    answer = raw.parse()
    assert answer.choices[0].message.content == direct["choices"][0]["message"]["content"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == direct["usage"]["completion_tokens"]
    assert raw.headers["x-forebay-endpoint"]
    assert raw.headers["x-request-id"]


def test_a_stream_through_the_router_gives_the_same_text_and_its_usage(stack: Stack) -> None:
    whole = stack.engines[0].chat("Name three colours.", max_tokens=24)["choices"][0]["message"]["content"]
    text, usage = "", None
    for event in stack.client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ):
        usage = event.usage or usage
        text += event.choices[0].delta.content or "" if event.choices else ""
    assert text == whole
    assert usage is not None
    assert usage.completion_tokens <= 24


def test_models_are_listed_and_unknown_ones_are_the_clients_fault(stack: Stack) -> None:
    assert [model.id for model in stack.client.models.list()] == [MODEL, "alias"]
    assert stack.client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        stack.client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError) as error:
        stack.client.chat.completions.create(model="other", messages=MESSAGES)
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        stack.client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=9)
    assert bad.value.param == "temperature"


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name.replace(" ", "-"))
def test_a_bad_request_is_refused_through_the_router_with_its_reason(stack: Stack, case: BadRequest) -> None:
    status, body = exchange("127.0.0.1", stack.router.port, case.raw)
    assert 400 <= status < 500
    error = json.loads(body)["error"]
    assert error["message"]
    assert "Traceback" not in error["message"]
    if case.name == "a number of 5,000 digits":
        # Beyond any number the router's parser holds: refused before a field is looked at.
        assert status == 400
        assert "JSON" in error["message"]
    elif case.routed:
        assert status in case.statuses, body
        said = f"{error['message']} {error['param']}".casefold()
        assert all(word.casefold() in said for word in case.words), body
    assert stack.router.process.poll() is None


def test_both_engines_take_traffic(stack: Stack) -> None:
    with constant_load(stack.router.url, MODEL, clients=3) as seen:
        eventually(lambda: seen.answered >= 9, 90, "nine answers", 0.05)
    assert not seen.failures
    assert len(seen.endpoints) == 2


def test_two_hundred_requests_of_which_half_are_cut_leave_no_page_and_no_lease(stack: Stack) -> None:
    """Every other client goes: in its head, in its body, in the queue, in the prefill, or in the stream."""
    chance = random.Random(11)
    eventually(stack.at_rest, 30, "nothing in flight before", 0.05)
    plans = [(number % 2 == 0, chance.random(), chance.random() * 0.25) for number in range(200)]
    whole: list[bool] = []
    lock = threading.Lock()

    def one(plan: tuple[bool, float, float]) -> None:
        cut, share, wait_s = plan
        body = json.dumps(
            {
                "model": MODEL,
                "stream": share < 0.7,
                "max_tokens": 16 if cut else 2,
                "messages": [{"role": "user", "content": f"Hi {share}"}],
            }
        ).encode()
        wire = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (
            len(body),
            body,
        )
        with socket.create_connection(("127.0.0.1", stack.router.port), timeout=120) as connection:
            if cut:
                connection.sendall(wire if share > 0.2 else wire[: int(len(wire) * share * 5)])
                connection.settimeout(max(wait_s, 0.001))
                with suppress(TimeoutError):
                    connection.recv(100)
                return
            connection.sendall(wire)
            received = b""
            while data := connection.recv(65536):
                received += data
        with lock:
            whole.append(received.startswith(b"HTTP/1.1 200") and b'"finish_reason":"' in received)

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(one, plans))
    assert whole == [True] * 100
    eventually(stack.at_rest, 2, "pages, sequences and leases are back at the baseline", 0.05)
    assert stack.engines[0].chat("Name three colours.", max_tokens=4)["choices"][0]["message"]["content"]


def test_an_engine_that_drains_and_goes_fails_no_request(stack: Stack) -> None:
    """Last in this module: one engine is told to end under load, as the kubelet does, and leaves the list later."""
    leaving, staying = stack.engines
    with constant_load(stack.router.url, MODEL, clients=3) as seen:
        eventually(lambda: seen.answered >= 3, 60, "answers before", 0.05)
        leaving.process.terminate()
        leaving.process.wait(60)
        after = seen.answered
        eventually(lambda: seen.answered >= after + 3, 60, "answers after", 0.05)
        stack.route(staying)
        routed = seen.answered
        eventually(lambda: seen.answered >= routed + 3, 60, "answers from the one that stays", 0.05)
    assert not seen.failures
