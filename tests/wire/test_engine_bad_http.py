"""Bad requests against a real engine: a 4xx with field and reason, no traceback, and the process lives."""

import json
import socket
import time

import pytest

from bad_http import ALL, CHAT, BadRequest, exchange
from engine_process import HEAD_SECONDS, EngineProcess

pytestmark = pytest.mark.wire


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_a_bad_request_is_refused_with_its_field_and_reason(engine: EngineProcess, case: BadRequest) -> None:
    status, body = exchange("127.0.0.1", engine.port, case.raw)
    assert status in case.statuses, body
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    for word in case.words:
        assert word in error["message"], error
    assert error["type"]
    assert error["code"]
    assert "Traceback" not in error["message"]


def test_there_are_at_least_forty_bad_requests_with_unique_names() -> None:
    assert len(ALL) >= 40
    assert len({case.name for case in ALL}) == len(ALL)


def test_a_head_that_comes_too_slowly_is_answered_408(engine: EngineProcess) -> None:
    began = time.monotonic()
    status, body = exchange("127.0.0.1", engine.port, b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nX-Slow: a")
    assert status == 408
    assert "request head" in json.loads(body)["error"]["message"]
    assert HEAD_SECONDS - 0.5 < time.monotonic() - began < HEAD_SECONDS + 15


def test_a_trickled_head_does_not_extend_its_time(engine: EngineProcess) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\n".encode() + b"X-A: b\r\n" * 20
    with socket.create_connection(("127.0.0.1", engine.port), timeout=HEAD_SECONDS / 10) as connection:
        end = time.monotonic() + HEAD_SECONDS + 15
        answer = b""
        sent = 0
        while not answer:
            assert time.monotonic() < end
            connection.sendall(head[sent : sent + 4])
            sent += 4
            try:
                answer = connection.recv(4096)
            except TimeoutError:
                continue
    assert answer.startswith(b"HTTP/1.1 408")


def test_the_engine_still_answers_and_logged_no_traceback(engine: EngineProcess) -> None:
    assert engine.chat("Say hi", max_tokens=2)["usage"]["completion_tokens"] == 2
    assert engine.process.poll() is None
    assert "Traceback" not in engine.log
    assert engine.metrics()["forebay_engine_http_malformed_total"] > 0
