"""Faults inside a real engine: whatever breaks, each request has one clear end, nothing hangs, nothing stays behind.

Errors are injected from outside by `fault_site`, and processes are killed. A fault of one request's own work (its
prompt, its text, its grammar) ends that request; a fault of the core ends all of them, readiness first, and the process
with a code that is not 0.
"""

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine_process import MODEL, EngineProcess, running_engine
from eventually import eventually

pytestmark = [pytest.mark.wire, pytest.mark.timeout(300)]

SITE = Path(__file__).resolve().parents[1] / "support" / "fault_site"
ALL_END_S = 1.0
SLOTS = 4
REGEX = {"regex": "(yes|no)"}


@dataclass(frozen=True)
class Faulty:
    """An engine and the switches of its faults."""

    engine: EngineProcess
    switches: Path

    @contextmanager
    def broken(self, place: str) -> Iterator[None]:
        """While the block runs, a place raises."""
        switch = self.switches / place
        switch.touch()
        try:
            yield
        finally:
            switch.unlink()


@dataclass(frozen=True)
class Ending:
    """How one request ended, and whether the engine still said it was ready just then."""

    status: int
    last: str
    is_cut: bool
    when_s: float
    was_ready: bool


@contextmanager
def faulty_engine(folder: Path, **flags: Any) -> Iterator[Faulty]:
    """A ready engine whose places can be broken."""
    switches = folder / "faults"
    switches.mkdir()
    env = {"PYTHONPATH": str(SITE), "FOREBAY_TEST_FAULTS": str(switches)}
    with running_engine(folder, env=env, max_running=SLOTS, max_batch_tokens=64, **flags) as engine:
        yield Faulty(engine, switches)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """One engine for the faults that end a request only."""
    with faulty_engine(tmp_path_factory.mktemp("faults")) as faulty:
        yield faulty


def chat(text: str, max_tokens: int = 8, **fields: Any) -> dict[str, Any]:
    """A greedy request."""
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": max_tokens, **fields}


def is_ready(engine: EngineProcess) -> bool:
    """Whether a probe would send work; a port that is gone is not ready."""
    try:
        return engine.call("GET", "/ready", timeout_s=10)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def run_to_end(engine: EngineProcess, body: dict[str, Any], began: Callable[[], object]) -> Ending:
    """One request, read until it ends in whatever way; `began` is called once its first byte has come."""
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    received, is_cut, status = b"", False, 0
    try:
        response = connection.getresponse()
        status = response.status
        while piece := response.read1(1 << 16):
            received += piece
            began()
    except (http.client.HTTPException, ConnectionError):
        is_cut = True
    ended_s = time.monotonic()
    was_ready = is_ready(engine)
    connection.close()
    lines = [line for line in received.decode().splitlines() if line]
    return Ending(status, lines[-1] if lines else "", is_cut, ended_s, was_ready)


def crowd(engine: EngineProcess, pool: ThreadPoolExecutor) -> list["Future[Ending]"]:
    """Streams in every slot, one that waits, and one that wants its answer whole; returns once all are in."""
    started = [threading.Event() for _ in range(SLOTS)]
    futures = [
        pool.submit(run_to_end, engine, chat(f"{place}: a very long story", 1500, stream=True), event.set)
        for place, event in enumerate(started)
    ]
    assert all(event.wait(60) for event in started)
    waiting = [chat(f"I wait, {stream}.", 1500, stream=stream) for stream in (True, False)]
    futures += [pool.submit(run_to_end, engine, body, bool) for body in waiting]
    eventually(lambda: engine.metrics()["forebay_engine_waiting_sequences"] == 2, 10, "two requests wait", 0.02)
    return futures


def all_ended(futures: list["Future[Ending]"], since_s: float) -> None:
    """Every request heard why, within the second, once readiness had gone."""
    for future in futures:
        ending = future.result(timeout=20)
        assert "engine failed" in ending.last, ending
        assert ending.last.count("engine failed") == 1
        assert ending.status == 503 or ending.is_cut, ending
        assert not ending.was_ready, ending
        assert ending.when_s - since_s < ALL_END_S, ending


def test_an_error_in_the_runner_ends_every_request_and_the_engine(tmp_path: Path) -> None:
    with faulty_engine(tmp_path) as faulty, ThreadPoolExecutor(SLOTS + 2) as pool:
        futures = crowd(faulty.engine, pool)
        broken_s = time.monotonic()
        with faulty.broken("runner"):
            all_ended(futures, broken_s)
            assert faulty.engine.process.wait(20) == 1
        assert "injected into _execute" in faulty.engine.log


def test_a_core_that_is_killed_ends_every_request_and_the_engine(tmp_path: Path) -> None:
    with faulty_engine(tmp_path) as faulty, ThreadPoolExecutor(SLOTS + 2) as pool:
        futures = crowd(faulty.engine, pool)
        killed_s = time.monotonic()
        os.kill(faulty.engine.core_pid(), signal.SIGKILL)
        all_ended(futures, killed_s)
        assert faulty.engine.process.wait(20) == 1


def test_an_error_in_the_tokenizer_ends_only_the_request_that_met_it(shared: Faulty) -> None:
    engine = shared.engine
    with ThreadPoolExecutor(1) as pool:
        started = threading.Event()
        other = pool.submit(run_to_end, engine, chat("Count to fifty.", 40, stream=True), started.set)
        assert started.wait(60)
        with shared.broken("tokenizer"):
            for stream in (False, True):
                ending = run_to_end(engine, chat("Hello.", stream=stream), bool)
                assert (ending.status, ending.is_cut, ending.was_ready) == (500, False, True)
                assert json.loads(ending.last)["error"]["type"] == "server_error"
        ending = other.result(60)
        assert (ending.status, ending.last, ending.is_cut) == (200, "data: [DONE]", False)
    assert engine.chat("Hello.", max_tokens=4)["choices"]
    eventually(engine.pages_at_rest, 5, "nothing stays behind", 0.05)


def test_an_error_in_the_detokenizer_ends_the_answers_being_written_and_nothing_else(shared: Faulty) -> None:
    engine = shared.engine
    with ThreadPoolExecutor(2) as pool:
        started = threading.Event()
        streamed = pool.submit(run_to_end, engine, chat("A long story.", 1500, stream=True), started.set)
        whole = pool.submit(run_to_end, engine, chat("Another story.", 1500), bool)
        assert started.wait(60)
        with shared.broken("detokenizer"):
            assert streamed.result(20).is_cut
            ending = whole.result(20)
            assert (ending.status, ending.was_ready) == (500, True)
    eventually(engine.pages_at_rest, 5, "the core has let go of both", 0.05)
    assert engine.chat("Hello.", max_tokens=4)["choices"]


@pytest.mark.parametrize("place", ["grammar", "store"])
def test_an_error_in_a_grammar_ends_only_its_request(shared: Faulty, place: str) -> None:
    engine = shared.engine
    with ThreadPoolExecutor(1) as pool:
        started = threading.Event()
        other = pool.submit(run_to_end, engine, chat("Count to fifty.", 40, stream=True), started.set)
        assert started.wait(60)
        grammar = {"regex": f"{place} (yes|no)"}
        with shared.broken(place):
            ending = run_to_end(engine, chat("Is it?", structured_outputs=grammar), bool)
            assert ending.status in {400, 503}, ending
            assert json.loads(ending.last)["error"]["message"]
            assert ending.was_ready
        ending = other.result(60)
        assert (ending.status, ending.last, ending.is_cut) == (200, "data: [DONE]", False)
    assert engine.chat("Is it?", structured_outputs={"regex": f"again {place} (yes|no)"})["choices"]
    eventually(engine.pages_at_rest, 5, "nothing stays behind", 0.05)


def compile_processes(engine: EngineProcess) -> list[int]:
    """Process ids of the grammar compilers."""
    children = Path(f"/proc/{engine.process.pid}/task/{engine.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"structured.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_killed_grammar_compiler_is_replaced(shared: Faulty) -> None:
    engine = shared.engine
    assert engine.chat("Is it?", structured_outputs=REGEX)["choices"][0]["message"]["content"] in {"yes", "no"}
    before = compile_processes(engine)
    assert before
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    answer = engine.chat("Is it?", structured_outputs={"regex": "(left|right)"})
    assert answer["choices"][0]["message"]["content"] in {"left", "right"}
    assert not set(before) & set(compile_processes(engine))
