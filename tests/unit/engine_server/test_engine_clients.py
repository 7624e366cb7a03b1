"""API clients: keys, and limits that name themselves and say when to come back."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.contract.errors import InvalidSpec
from forebay.engine.server.clients import Bucket, Client, Clients, LimitReached, read_clients
from forebay.engine.server.errors import problem_of


def read(tmp_path: Path, document: Any) -> dict[str, tuple[str, dict[str, int]]]:
    """The clients of a file with this content."""
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(document))
    return read_clients(str(path))


def test_a_key_alone_and_a_key_with_limits_are_read(tmp_path: Path) -> None:
    entries = read(tmp_path, {"a": "key-a", "b": {"key": "key-b", "requests": 3, "max_running": 2}})
    assert entries == {"a": ("key-a", {}), "b": ("key-b", {"requests": 3, "max_running": 2})}
    assert read_clients("") == {}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "object of client name"),
        ({}, "object of client name"),
        ({"a": ""}, "'a' needs a key"),
        ({"a": {"requests": 1}}, "'a' needs a key"),
        ({"a": {"key": "k", "request": 1}}, "unknown limit 'request'"),
        ({"a": {"key": "k", "requests": 0}}, "at least 1"),
        ({"a": {"key": "k", "requests": True}}, "at least 1"),
        ({"a": "same", "b": "same"}, "same key"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, document: Any, words: str) -> None:
    with pytest.raises(InvalidSpec, match=words) as refusal:
        read(tmp_path, document)
    assert refusal.value.field == "api_keys_file"


def test_only_the_right_key_as_a_bearer_token_finds_its_client() -> None:
    clients = Clients({"a": ("key-a", {}), "b": ("key-b", {})}, 0.0)
    found = clients.find("Bearer key-b")
    assert found is not None
    assert found.name == "b"
    assert [clients.find(header) for header in ("", "Bearer nope", "Basic key-b", "Bearer")] == [None] * 4
    anyone = Clients({}, 0.0).find("")
    assert anyone is not None
    assert anyone.name == ""


def test_each_limit_names_itself_and_says_when_to_come_back() -> None:
    client = Client("bob", {"requests": 2, "tokens_per_minute": 60, "max_running": 1}, 0.0)
    with client.request(0.0):
        with pytest.raises(LimitReached, match="max_running: client bob"), client.request(0.0):
            pass
        client.charge(90, 0.0)
    with pytest.raises(LimitReached, match="tokens_per_minute: client bob") as refusal, client.request(0.0):
        pass
    assert refusal.value.retry.after_s == pytest.approx(31.0)
    with client.request(31.5):
        pass
    with client.request(31.5):
        pass
    with pytest.raises(LimitReached, match="requests: client bob"), client.request(31.6):
        pass
    problem = problem_of(refusal.value)
    assert (problem.status, problem.code, problem.retry_after_s) == (
        429,
        "rate_limit_exceeded",
        refusal.value.retry.after_s,
    )


@given(st.integers(1, 1000), st.lists(st.tuples(st.floats(0, 30), st.integers(0, 500)), max_size=20))
def test_no_more_than_the_rate_and_one_overdraft_passes_a_bucket(
    per_minute: int, asks: list[tuple[float, int]]
) -> None:
    bucket, now_s, passed = Bucket(per_minute, 0.0), 0.0, 0
    for pause_s, units in asks:
        now_s += pause_s
        wait_s = bucket.wait_s(1, now_s)
        if wait_s == 0:
            before = passed
            bucket.take(units, now_s)
            passed += units
            assert before <= per_minute * (1 + now_s / 60) + 1e-6
        else:
            assert bucket.wait_s(1, now_s + wait_s + 1e-6) == 0
