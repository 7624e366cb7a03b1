"""The life of a real engine: drains, limits, failures of either process, and what clients see of each."""

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine_process import MODEL, EngineProcess, running_engine
from eventually import eventually

pytestmark = pytest.mark.wire

ENDLESS = {"model": MODEL, "prompt": "word word", "max_tokens": 4000, "ignore_eos": True, "stream": True}


@contextmanager
def open_stream(
    engine: EngineProcess, headers: dict[str, str] | None = None, **fields: Any
) -> Iterator[http.client.HTTPResponse]:
    """A stream whose first event has come."""
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=60)
    try:
        connection.request("POST", "/v1/completions", json.dumps({**ENDLESS, **fields}), headers or {})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.readline().startswith(b"data: {")
        yield response
    finally:
        connection.close()


def rest_of(response: http.client.HTTPResponse) -> tuple[list[bytes], bool]:
    """The remaining events, and whether the stream was cut short of its proper end."""
    body, is_cut = b"", False
    try:
        while piece := response.read1(65536):
            body += piece
    except (http.client.HTTPException, ConnectionError):
        is_cut = True
    return [line.removeprefix(b"data: ") for line in body.splitlines() if line], is_cut


def has_ended(pid: int) -> bool:
    """Whether a process is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_sigterm_lets_requests_finish_within_the_grace_and_exits_0(tmp_path: Path) -> None:
    with running_engine(tmp_path, drain_seconds=8) as engine:
        core = engine.core_pid()
        with open_stream(engine, max_tokens=8) as short, open_stream(engine) as endless:
            engine.process.send_signal(signal.SIGTERM)
            eventually(lambda: b"draining" in engine.call("GET", "/ready")[2], 2, "readiness is gone", interval_s=0.01)
            status, headers, refused = engine.call("POST", "/v1/completions", {**ENDLESS, "stream": False})
            assert (status, json.loads(refused)["error"]["code"]) == (503, "draining")
            assert int(headers["retry-after"]) >= 1
            events, is_cut = rest_of(short)
            assert (events[-1].strip(), is_cut) == (b"[DONE]", False)
            events, is_cut = rest_of(endless)
            assert json.loads(events[-1])["error"]["code"] == "draining"
            assert is_cut
        assert engine.process.wait(20) == 0
        assert has_ended(core)


def test_limits_answer_in_time_and_a_dead_core_ends_the_engine(tmp_path: Path) -> None:
    with running_engine(tmp_path, max_running=1, max_waiting=1, max_seconds=4) as engine:
        with open_stream(engine) as first:
            status, _, late = engine.call("POST", "/v1/completions", {**ENDLESS, "stream": False})
            # It runs out of time while it waits, or just after the first has ended at its own deadline.
            document = json.loads(late)
            why = document["error"]["code"] if status == 503 else document["choices"][0]["stop_reason"]
            assert (status, why) in {(503, "deadline_exceeded"), (200, "deadline")}
            events, is_cut = rest_of(first)
            choice = json.loads(events[-2])["choices"][0]
            assert (choice["finish_reason"], choice["stop_reason"], is_cut) == ("length", "deadline", False)
        with open_stream(engine), pytest.raises(TimeoutError):
            engine.call("POST", "/v1/completions", {**ENDLESS, "prompt": "second"}, timeout_s=0.5)
        eventually(engine.pages_at_rest, 5, "the waiting request that timed out is gone", interval_s=0.05)
        _overload(engine)
        with open_stream(engine) as stream:
            os.kill(engine.core_pid(), signal.SIGKILL)
            events, is_cut = rest_of(stream)
            assert "engine failed" in json.loads(events[-1])["error"]["message"]
            assert is_cut
        assert engine.process.wait(20) == 1
        assert "the core failed" in engine.log


def _overload(engine: EngineProcess) -> None:
    """With one request running and one waiting, the next is told when to come back."""
    waiting = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=60)
    with open_stream(engine):
        waiting.request("POST", "/v1/completions", json.dumps({**ENDLESS, "prompt": "waits"}))
        eventually(lambda: engine.metrics()["forebay_engine_waiting_sequences"] == 1, 3, "one waits", interval_s=0.02)
        status, headers, body = engine.call("POST", "/v1/completions", ENDLESS)
        assert status == 429, body
        assert int(headers["retry-after"]) >= 1
        assert json.loads(body)["error"]["code"] == "overloaded"
    waiting.close()
    eventually(engine.pages_at_rest, 5, "both are gone", interval_s=0.05)


def test_keys_are_asked_for_and_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"alice": "key-a", "bob": "key-b"}))
    bearer = {"Authorization": "Bearer key-b"}
    with running_engine(tmp_path, api_keys_file=keys, drain_seconds=100) as engine:
        for headers in ({}, {"Authorization": "Bearer nope"}, {"Authorization": "Basic key-b"}):
            status, answered, body = engine.call("GET", "/v1/models", headers=headers)
            assert (status, answered["www-authenticate"]) == (401, "Bearer")
            assert json.loads(body)["error"]["code"] == "invalid_api_key"
        assert engine.call("GET", "/v1/models", headers=bearer)[0] == 200
        core = engine.core_pid()
        with open_stream(engine, bearer) as stream:
            busy = _drain(engine, timeout_s=0.3)
            assert (busy.returncode, "1 open requests" in busy.stdout) == (1, True)
            assert engine.call("GET", "/ready")[0] == 503
            engine.process.send_signal(signal.SIGTERM)
            eventually(lambda: "grace 100 s" in engine.log, 2, "the signal is seen", interval_s=0.01)
            engine.process.send_signal(signal.SIGTERM)
            events, is_cut = rest_of(stream)
            assert json.loads(events[-1])["error"]["code"] == "draining"
            assert is_cut
            assert engine.process.wait(20) == 143
        assert has_ended(core)


def test_an_idle_engine_drains_and_a_killed_server_takes_its_core_along(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine:
        core = engine.core_pid()
        idle = _drain(engine, timeout_s=20)
        assert (idle.returncode, idle.stdout) == (0, "drained\n")
        engine.process.kill()
        assert engine.process.wait(5) == -signal.SIGKILL
        eventually(lambda: has_ended(core), 20, "the core ends with its server", interval_s=0.05)
        assert _drain(engine, timeout_s=1).stdout == "the engine is gone\n"


def _drain(engine: EngineProcess, timeout_s: float) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-m",
        "forebay.engine",
        "drain",
        "--port",
        str(engine.port),
        "--timeout-s",
        str(timeout_s),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
