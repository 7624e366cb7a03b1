"""A recorded request runs again: on the same engine, on one started for it, and with a record that was changed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine_process import MODEL, EngineProcess, sse_events
from smollm2 import smollm2_gguf

pytestmark = pytest.mark.wire

BODY = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Name three rivers."}],
    "max_tokens": 12,
    "temperature": 1.0,
    "forebay_record": True,
}


def recorded(engine: EngineProcess, **fields: Any) -> dict[str, Any]:
    """A whole answer with its record."""
    status, _, answer = engine.call("POST", "/v1/chat/completions", {**BODY, **fields})
    assert status == 200, answer
    return dict(json.loads(answer))


def replay(path: Path, document: dict[str, Any], *where: str) -> "subprocess.CompletedProcess[str]":
    """Run the command on a document."""
    path.write_text(json.dumps(document))
    command = [sys.executable, "-m", "forebay.engine", "replay", str(path), *where]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def test_a_sampled_answer_is_repeated_token_by_token_on_a_running_engine(engine: EngineProcess, tmp_path: Path) -> None:
    answer = recorded(engine, n=2)
    record = answer["forebay_record"]
    assert len(record["candidates"]) == 2
    assert [len(candidate["output_ids"]) for candidate in record["candidates"]]
    assert all(len(record[name]) == 64 for name in ("model_digest", "tokenizer_digest", "template_digest"))
    assert record["config_digest"] == json.loads(engine.call("GET", "/v1/forebay/config")[2])["digest"]
    done = replay(tmp_path / "record.json", answer, "--url", engine.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("the tokens agree:")


def test_a_changed_record_parts_where_it_was_changed(engine: EngineProcess, tmp_path: Path) -> None:
    record = recorded(engine, stop=["zzz"], seed=5)["forebay_record"]
    record["candidates"][0]["output_ids"][3] += 1
    record["model_digest"] = "0" * 64
    done = replay(tmp_path / "record.json", record, "--url", engine.url)
    assert done.returncode == 1
    assert "parts: answer 0: tokens part at 3" in done.stdout
    assert "differs: model_digest" in done.stdout


def test_an_engine_started_for_a_record_gives_the_same_tokens(engine: EngineProcess, tmp_path: Path) -> None:
    answer = recorded(engine, seed=11, response_format={"type": "json_object"})
    assert answer["forebay_record"]["grammar_digest"]
    done = replay(tmp_path / "record.json", answer, "--model", str(smollm2_gguf()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the tokens agree" in done.stdout


def test_a_stream_ends_with_its_record(engine: EngineProcess) -> None:
    _, _, body = engine.call("POST", "/v1/chat/completions", {**BODY, "stream": True, "seed": 1})
    events = sse_events(body)
    record = json.loads(events[-2])["forebay_record"]
    assert record["request"]["body"]["seed"] == 1
    assert record["candidates"] == recorded(engine, seed=1)["forebay_record"]["candidates"]


@pytest.mark.parametrize("document", [{}, {"version": 99}, {"version": 1}])
def test_what_is_not_a_record_is_refused(tmp_path: Path, document: dict[str, Any]) -> None:
    done = replay(tmp_path / "record.json", document, "--url", "http://127.0.0.1:1")
    assert done.returncode == 2
    assert done.stderr.startswith("forebay-engine: ")
