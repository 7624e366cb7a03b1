"""Runs a recorded request again, on a running engine or on one started for it, and says whether the tokens agree.

Exit code 0: they agree; 1: they part, and where is printed; 2: the record or the engine cannot be used. Differences
in what ran (release, weights, configuration) are printed too, for they say why. Called by `__main__`.
"""

import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay.contract.errors import InvalidSpec
from forebay.contract.names import PATH_READY
from forebay.engine.keys import KEYS_BY_NAME
from forebay.engine.record import check_record, compare

_CALL_S = 900.0
_START_S = 300.0
_STOP_S = 30.0
_POLL_S = 0.1
_OWN_KEYS = frozenset({"model", "draft_model", "host", "port", "api_keys_file", "log_level"})
"""Settings of the engine that made the record which say nothing about its answers, or name its own files."""

Say = Callable[[str], None]


def replay(path: Path, url: str | None, model: Path | None, api_key: str, say: Say) -> int:
    """Replay the record at `path` against `url`, or against an engine started for `model`; returns the exit code."""
    try:
        record = check_record(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidSpec(f"cannot read {path}: {error}", field="record") from error
    if url is not None:
        return _against(record, url, api_key, say)
    if model is None:
        raise InvalidSpec("give --url or --model", field="url")
    with _engine(record, model) as own:
        return _against(record, own, api_key, say)


def _against(record: dict[str, Any], url: str, api_key: str, say: Say) -> int:
    request = record["request"]
    second = check_record(_post(url, str(request["path"]), request["body"], api_key))
    comparison = compare(record, second)
    for line in comparison.differences:
        say(f"differs: {line}")
    for line in comparison.partings:
        say(f"parts: {line}")
    if comparison.partings:
        return 1
    tokens = sum(len(candidate["output_ids"]) for candidate in record["candidates"])
    say(f"the tokens agree: {tokens} in {len(record['candidates'])} answers")
    return 0


def _post(url: str, path: str, body: dict[str, Any], api_key: str) -> Any:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidSpec(f"url: {url!r} is not an HTTP URL", field="url")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=_CALL_S)
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    try:
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise InvalidSpec(f"the engine answered {response.status}: {answer[:500]!r}", field="url")
        return json.loads(answer)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise InvalidSpec(f"the engine at {url} did not answer: {error}", field="url") from error
    finally:
        connection.close()


@contextmanager
def _engine(record: dict[str, Any], model: Path) -> Iterator[str]:
    """A ready engine with the record's configuration on a port of its own; ended on leaving."""
    values = {name: value for name, value in record["config"].items() if name in KEYS_BY_NAME and name not in _OWN_KEYS}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="forebay-replay-") as folder:
        config = Path(folder) / "engine.json"
        config.write_text(json.dumps(values))
        command = [sys.executable, "-m", "forebay.engine", "serve", "--config", str(config), "--log-level", "warning"]
        process = subprocess.Popen([*command, "--model", str(model), "--port", str(port)])
        try:
            _wait_ready(process, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_ready(process: "subprocess.Popen[bytes]", port: int) -> None:
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise InvalidSpec(f"the engine ended with {process.returncode}", field="model")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_STOP_S)
        try:
            connection.request("GET", PATH_READY)
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(_POLL_S)
    raise InvalidSpec(f"the engine was not ready within {_START_S:g} s", field="model")
