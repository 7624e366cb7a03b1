"""A real engine as a process of its own, with the real small model, for wire tests of engine and router."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eventually import eventually
from smollm2 import smollm2_gguf

MODEL = "smollm2"
START_DEADLINE_S = 180.0
STOP_DEADLINE_S = 60.0
HEAD_SECONDS = 3.0
MAX_BODY_BYTES = 1 << 18
MAX_PROMPT_TOKENS = 2000


@dataclass(frozen=True)
class EngineProcess:
    """A running engine. `started_s` is the time from its start to the first 200 of /ready."""

    process: "subprocess.Popen[bytes]"
    port: int
    log_file: Path
    began_s: float
    started_s: float

    @property
    def url(self) -> str:
        """Base URL of the engine."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What the engine wrote to standard error so far."""
        return self.log_file.read_text(errors="replace")

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> tuple[int, dict[str, str], bytes]:
        """One request; `body` is sent as JSON unless it is bytes. Returns status, lower-case headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, body=data, headers=dict(headers or {}))
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def chat(self, text: str, **fields: Any) -> dict[str, Any]:
        """A whole greedy chat answer; fails unless the status is 200."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
        status, _, answer = self.call("POST", "/v1/chat/completions", body)
        assert status == 200, answer
        return dict(json.loads(answer))

    def metrics(self) -> dict[str, float]:
        """Every series of /metrics by its name with labels."""
        status, _, text = self.call("GET", "/metrics")
        assert status == 200
        lines = [line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#")]
        return {series: float(value) for series, value in lines}

    def pages_at_rest(self) -> bool:
        """Whether no sequence and no page is in use."""
        metrics = self.metrics()
        names = (
            "running_sequences",
            "waiting_sequences",
            "open_requests",
            'kv_pages{state="used"}',
            'kv_pages{state="held"}',
        )
        return all(metrics[f"forebay_engine_{name}"] == 0 for name in names)

    def cpu_seconds(self) -> float:
        """CPU time of both processes so far: the time a start takes on a machine that does nothing else."""
        return sum(_cpu_seconds(pid) for pid in (self.process.pid, self.core_pid()))

    def core_pid(self) -> int:
        """Process id of the core."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next(int(pid) for pid in children if b"\0core\0" in Path(f"/proc/{pid}/cmdline").read_bytes())


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def running_engine(
    folder: Path, *, model: Path | None = None, env: Mapping[str, str] | None = None, **flags: Any
) -> Iterator[EngineProcess]:
    """A ready engine; `flags` are configuration keys. Stopped on leaving, whatever happened."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    settings = {
        "served_names": MODEL,
        "dtype": "fp32",
        "kv_cache_bytes": 192 << 20,
        "max_running": 16,
        "head_seconds": HEAD_SECONDS,
        "max_body_bytes": MAX_BODY_BYTES,
        "max_prompt_tokens": MAX_PROMPT_TOKENS,
        **flags,
    }
    command = [
        sys.executable,
        "-m",
        "forebay.engine",
        "serve",
        "--model",
        str(model or smollm2_gguf()),
        "--port",
        str(port),
    ]
    for name, value in settings.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    log_file = folder / f"engine-{port}.log"
    began_s = time.monotonic()
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env={**os.environ, **(env or {})})
    try:
        started_s = _wait_ready(process, port, log_file, began_s)
        yield EngineProcess(process, port, log_file, began_s, started_s)
    finally:
        stop(process)


def _wait_ready(process: "subprocess.Popen[bytes]", port: int, log_file: Path, began_s: float) -> float:
    def is_ready() -> bool:
        assert process.poll() is None, f"the engine ended with {process.returncode}:\n{log_file.read_text()}"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    eventually(is_ready, START_DEADLINE_S, f"the engine is ready; its log is {log_file}", interval_s=0.05)
    return time.monotonic() - began_s


def stop(process: "subprocess.Popen[bytes]") -> int:
    """End an engine and return its exit code; one that does not drain in time is killed."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def sse_events(body: bytes) -> list[str]:
    """The data of each server-sent event."""
    return re.findall(r"^data: (.*)$", body.decode(), flags=re.MULTILINE)
