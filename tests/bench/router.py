"""CPU time of the router for each request and chunk, beside nginx on the same machine in the same run.

Proxy on one core, load generator (wrk) and a dummy upstream on another. Requests per second depend on what else the
machine does; CPU microseconds of the proxy process for each request (user + system, from /proc) do so far less, and are
the number to compare. Modes: `plain` (JSON in, JSON out), `burst` (a stream of 64 chunks without delay), `paced` (64
chunks, one every 20 ms, on 256 connections). Writes `results/router.json`. Needs wrk and nginx.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import cast

import uvloop

CHUNKS = 64
PACE_S = 0.02
RESULT = Path(__file__).parent / "results" / "router.json"
PATHS = {"plain": "/v1/completions", "burst": "/v1/chat/completions", "paced": "/v1/responses"}
CONNECTIONS = {"plain": 64, "burst": 64, "paced": 256}
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class DummyUpstream(asyncio.Protocol):
    """Answers every request whose head it has seen; request bodies here always come with the head."""

    _json = json.dumps({"id": "cmpl-1", "object": "text_completion", "choices": [{"text": "x" * 850}]}).encode()
    _plain = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_json), _json)
    _head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    _event = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"delta":{"content":" word"}}]}\n\n'
    _chunk = b"%x\r\n%b\r\n" % (len(_event), _event)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if data.startswith(b"POST /v1/completions"):
            self._transport.write(self._plain)
        elif data.startswith(b"POST "):
            self._transport.write(self._head)
            self._next(CHUNKS, PACE_S if data.startswith(b"POST /v1/responses") else 0.0)
        else:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    def _next(self, left: int, pace_s: float) -> None:
        if self._transport.is_closing():
            return
        if not left:
            self._transport.write(b"0\r\n\r\n")
        else:
            self._transport.write(self._chunk)
            if pace_s:
                self._loop.call_later(pace_s, self._next, left - 1, pace_s)
            else:
                self._loop.call_soon(self._next, left - 1, pace_s)


async def serve_upstream(port: int) -> None:
    """Run the dummy upstream until the process is ended."""
    server = await asyncio.get_running_loop().create_server(DummyUpstream, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


@dataclass(frozen=True)
class Figure:
    """One proxy in one mode: medians over the repeats."""

    proxy: str
    mode: str
    cpu_us_per_request: float
    cpu_us_per_chunk: float | None
    requests_per_s: float
    latency_p50_ms: float
    latency_p99_ms: float


@dataclass(frozen=True)
class Proxy:
    """A running proxy: where it listens and which process does the work."""

    name: str
    port: int
    pid: int


def cpu_s(pid: int) -> float:
    """User and system CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for(port: int, deadline_s: float = 15.0) -> None:
    """Wait until something listens."""
    end = time.monotonic() + deadline_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < end, f"nothing listens on port {port}"
            time.sleep(0.05)
        else:
            return


def only_child(pid: int, deadline_s: float = 10.0) -> int:
    """The first child of a process, once it has one: a server listens before its worker runs."""
    end = time.monotonic() + deadline_s
    while True:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        assert time.monotonic() < end, f"process {pid} has no child"
        time.sleep(0.05)


@contextmanager
def started(arguments: list[str], core: int, port: int) -> Iterator[int]:
    """A process pinned to a core, from listening until the block ends; gives its process id."""
    process = subprocess.Popen(["taskset", "-c", str(core), *arguments], stdout=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield process.pid
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def forebay(upstreams: list[int], folder: Path, core: int) -> Iterator[Proxy]:
    """Our router in front of the upstreams."""
    document = {
        "routes": {"version": 1, "epoch": 1, "models": ["m"], "weights": [{"revision": "r", "weight": 1}]},
        "endpoints": [{"address": f"127.0.0.1:{port}", "revision": "r"} for port in upstreams],
    }
    path = folder / "routes.json"
    path.write_text(json.dumps(document))
    port = free_port()
    command = [sys.executable, "-m", "forebay.router", "--static-routes", str(path), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--admin-port", "0", "--drain-seconds", "0", "--log-level", "error"]
    with started(command, core, port) as pid:
        yield Proxy("forebay", port, pid)


@contextmanager
def nginx(upstreams: list[int], folder: Path, core: int) -> Iterator[Proxy]:
    """One nginx worker in front of the upstreams, without logs and without response buffering."""
    servers = " ".join(f"server 127.0.0.1:{port};" for port in upstreams)
    port = free_port()
    (folder / "nginx.conf").write_text(
        f"""daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log /dev/null crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000000;
  upstream engines {{ {servers} keepalive 512; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""
    )
    with started(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")], core, port) as pid:
        yield Proxy("nginx", port, only_child(pid))


def wrk(port: int, mode: str, seconds: float, folder: Path, core: int) -> tuple[int, float, float, float, int]:
    """Load one proxy: (requests, requests per second, p50 ms, p99 ms, errors)."""
    body = json.dumps(
        {"model": "m", "stream": mode != "plain", "messages": [{"role": "user", "content": "word " * 170}]}
    )
    script = folder / f"{mode}.lua"
    script.write_text(
        f"wrk.method = 'POST'\nwrk.path = '{PATHS[mode]}'\nwrk.body = [==[{body}]==]\n"
        "wrk.headers['Content-Type'] = 'application/json'\n"
        "done = function(summary, latency)\n"
        "  local e = summary.errors\n"
        "  print(string.format('RESULT %d %d %f %f %d', summary.requests, summary.duration, latency:percentile(50),"
        " latency:percentile(99), e.connect + e.read + e.write + e.status + e.timeout))\nend\n"
    )
    command = [
        "taskset",
        "-c",
        str(core),
        "wrk",
        "-t1",
        f"-c{CONNECTIONS[mode]}",
        f"-d{seconds:g}s",
        "--timeout",
        "30s",
        "-s",
        str(script),
    ]
    out = subprocess.run([*command, f"http://127.0.0.1:{port}"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"RESULT (\d+) (\d+) ([\d.]+) ([\d.]+) (\d+)", out)
    assert found, out
    requests, duration_us, errors = int(found[1]), int(found[2]), int(found[5])
    return requests, requests / duration_us * 1e6, float(found[3]) / 1e3, float(found[4]) / 1e3, errors


def measure(proxy: Proxy, mode: str, seconds: float, repeats: int, folder: Path, core: int) -> Figure:
    """Medians of the repeats, after a short warm-up."""
    wrk(proxy.port, mode, 1, folder, core)
    rows = []
    for _ in range(repeats):
        before_s = cpu_s(proxy.pid)
        requests, rate, p50_ms, p99_ms, errors = wrk(proxy.port, mode, seconds, folder, core)
        rows.append(((cpu_s(proxy.pid) - before_s) / max(requests, 1) * 1e6, rate, p50_ms, p99_ms, errors))
    errors = sum(row[4] for row in rows)
    if errors:
        raise SystemExit(f"{proxy.name}, {mode}: {errors} failed requests; figures of failures mean nothing")
    cpu_us, rate, p50_ms, p99_ms = (round(statistics.median(column), 3) for column in list(zip(*rows, strict=True))[:4])
    per_chunk = round(cpu_us / CHUNKS, 3) if mode != "plain" else None
    return Figure(proxy.name, mode, cpu_us, per_chunk, rate, p50_ms, p99_ms)


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    text = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.+)", text)
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "uvloop": version("uvloop"),
        "load_average": [round(number, 1) for number in os.getloadavg()],
    }


def run(modes: list[str], seconds: float, repeats: int) -> list[Figure]:
    """All figures; both proxies are measured in turn for each mode, so that they meet the same neighbours."""
    cores = sorted(os.sched_getaffinity(0))
    proxy_core, load_core = cores[0], cores[-1]
    figures = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstreams = [free_port() for _ in range(2)]
        for port in upstreams:
            stack.enter_context(started([sys.executable, __file__, "--upstream", str(port)], load_core, port))
        proxies = [
            stack.enter_context(forebay(upstreams, folder, proxy_core)),
            stack.enter_context(nginx(upstreams, folder, proxy_core)),
        ]
        for mode in modes:
            for proxy in proxies:
                figures.append(measure(proxy, mode, seconds, repeats, folder, load_core))
                print(json.dumps(asdict(figures[-1])), flush=True)
    return figures


def main() -> None:
    """Run the bench, print figures and ratios, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--modes", nargs="+", choices=list(PATHS), default=list(PATHS))
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--upstream", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.upstream:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_upstream(options.upstream))
        return
    missing = [tool for tool in ("wrk", "nginx", "taskset") if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"not installed: {', '.join(missing)}")
    figures = run(options.modes, options.seconds, options.repeats)
    by_key = {(figure.proxy, figure.mode): figure.cpu_us_per_request for figure in figures}
    ratios = {mode: round(by_key["forebay", mode] / by_key["nginx", mode], 2) for mode in options.modes}
    for mode, ratio in ratios.items():
        print(f"{mode}: {by_key['forebay', mode]:.1f} us, {ratio} x nginx ({by_key['nginx', mode]:.1f} us)")
    document = {"machine": machine(), "cpu_ratio_to_nginx": ratios, "figures": [asdict(figure) for figure in figures]}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
