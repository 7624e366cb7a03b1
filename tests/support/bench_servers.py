"""Servers and peers of the engine's benchmark: started, paused while another is measured, and always stopped.

Every server is a process group of its own. A paused one is stopped by SIGSTOP, so that an idle peer that polls takes
nothing from the one that is measured; where the system allows it, groups go ahead of other work on the machine, which
disturbs all sides less. `hack/setup.py engine-peers` makes the environments of vLLM and llama.cpp in the
user's cache. Used by `tests/bench/engine.py`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay.engine.bench import Target
from smollm2 import smollm2_directory, smollm2_gguf

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL = "bench"
START_DEADLINE_S = 600.0
STOP_DEADLINE_S = 60.0
_PEERS_MISSING = "its environment is missing; run `python3 hack/setup.py engine-peers`"
_NICE = -20
_GO_AHEAD_S = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")


def peers_folder() -> Path:
    """Where the peers' environments and model files are."""
    base = os.environ.get("FOREBAY_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "forebay")
    return Path(base).expanduser() / "peers"


def go_ahead(pid: int, nice: int = _NICE) -> None:
    """Let the scheduling group of a process run before others; without the right to do so nothing changes."""
    deadline_s = time.monotonic() + _GO_AHEAD_S
    # The kernel takes only a few such changes a second, and says so by `BlockingIOError`.
    while isinstance(_set_nice(pid, nice), BlockingIOError) and time.monotonic() < deadline_s:
        time.sleep(0.05)


def _set_nice(pid: int, nice: int) -> OSError | None:
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
    except OSError as error:
        return error
    return None


@contextmanager
def ahead() -> Iterator[None]:
    """This process's group runs before others while the block runs; its other members are those of the same session."""
    go_ahead(os.getpid())
    try:
        yield
    finally:
        go_ahead(os.getpid(), 0)


def group_pids(group: int) -> list[int]:
    """Processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group:
                found.append(int(entry.name))
    return found


class Server:
    """A running server. `start_s` is the time from its start to the first 200 of its probe."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, start_s: float, name: str) -> None:
        self.process = process
        self.port = port
        self.start_s = start_s
        self.name = name

    @property
    def target(self) -> Target:
        """Where the load goes."""
        return Target("127.0.0.1", self.port, is_tls=False, path="", model=MODEL)

    def pause(self) -> None:
        """Take the whole group off the CPUs."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def cpu_s(self) -> float:
        """CPU seconds of the group's living processes."""
        total = 0
        for pid in group_pids(self.process.pid):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / _TICKS

    def resident_bytes(self) -> int:
        """Proportional resident memory of the group: pages that processes share count once."""
        total = 0
        for pid in group_pids(self.process.pid):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total * 1024

    def get(self, path: str) -> bytes:
        """The body of a GET."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as response:
            return bytes(response.read())


@contextmanager
def _server(
    name: str, argv: Sequence[str], port: int, probe: str, env: Mapping[str, str], log: Path
) -> Iterator[Server]:
    began_s = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv, stdout=output, stderr=output, env={**os.environ, **env}, start_new_session=True, cwd=REPOSITORY
        )
    try:
        go_ahead(process.pid)
        while not _answers(port, probe):
            if process.poll() is not None or time.monotonic() - began_s > START_DEADLINE_S:
                raise SystemExit(f"{name} did not start, exit code {process.poll()}; its log is {log}")
            time.sleep(0.01)
        yield Server(process, port, time.monotonic() - began_s, name)
    finally:
        stop_group(process)


def stop_group(process: "subprocess.Popen[bytes]") -> None:
    """End a process group: politely, then for good."""
    for number in (signal.SIGCONT, signal.SIGTERM):
        _signal_group(process.pid, number)
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _answers(port: int, probe: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{probe}", timeout=1) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def engine_server(folder: Path, dtype: str, kv_bytes: int, **keys: Any) -> Iterator[Server]:
    """A ready engine of this tree; `keys` are further configuration keys."""
    port = _free_port()
    settings = {
        "model": smollm2_gguf(),
        "served_names": MODEL,
        "host": "127.0.0.1",
        "port": port,
        "dtype": dtype,
        "kv_cache_bytes": kv_bytes,
        "max_running": 32,
        **keys,
    }
    argv = [sys.executable, "-m", "forebay.engine", "serve"]
    for name, value in settings.items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    with _server(f"forebay {dtype}", argv, port, "/ready", {}, folder / f"engine-{dtype}-{port}.log") as server:
        yield server


@contextmanager
def vllm_server(folder: Path) -> Iterator[Server]:
    """A ready vLLM of the CPU build, bf16, both its caches kept between runs.

    It gets every core, as the engine does: by default it leaves one to its API process, which is slower here.
    """
    home = peers_folder() / "vllm"
    binary = home / "bin" / "vllm"
    if not binary.exists():
        raise SystemExit(f"vllm: {_PEERS_MISSING}")
    port = _free_port()
    argv = [str(binary), "serve", str(smollm2_directory()), "--served-model-name", MODEL, "--dtype", "bfloat16"]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048", "--max-num-seqs", "32"]
    cores = sorted(os.sched_getaffinity(0))
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "OMP_NUM_THREADS": str(len(cores)),
        "VLLM_CACHE_ROOT": str(home / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with _server("vllm", argv, port, "/health", env, folder / "vllm.log") as server:
        yield server


class LlamaPeer:
    """llama.cpp in a process of its own; one model file."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def run(self, prompt: Sequence[int], output_tokens: int) -> dict[str, float]:
        """Seconds to the first token and between tokens of one greedy answer."""
        return self._ask({"prompt": list(prompt), "output_tokens": output_tokens})

    def _ask(self, question: dict[str, Any]) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"llama.cpp ended with {self._process.wait()}")
        answer: dict[str, float] = json.loads(line)
        return answer


@contextmanager
def llama_peer(folder: Path, model: Path) -> Iterator[LlamaPeer]:
    """llama.cpp with a model loaded; it reads questions from its standard input."""
    home = peers_folder() / "llama-cpp"
    if not (home / "forebay.stamp").exists():
        raise SystemExit(f"llama.cpp: {_PEERS_MISSING}")
    script = REPOSITORY / "tests" / "bench" / "llama_peer.py"
    argv = [str(home / "bin" / "python"), str(script), "serve", str(model), str(len(os.sched_getaffinity(0)))]
    with (folder / f"llama-{model.stem}.log").open("wb") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    try:
        go_ahead(process.pid)
        yield LlamaPeer(process)
    finally:
        stop_group(process)


def llama_q8_0() -> Path:
    """The small model as Q8_0, made once from its Q4_1 file by llama.cpp's own quantizer."""
    source = smollm2_gguf()
    target = peers_folder() / "models" / "SmolLM2-135M-Instruct.Q8_0.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        script = REPOSITORY / "tests" / "bench" / "llama_peer.py"
        python = peers_folder() / "llama-cpp" / "bin" / "python"
        building = target.with_suffix(".building")
        subprocess.run([python, script, "quantize", source, building], check=True, capture_output=True)
        building.rename(target)
    return target
