"""Speed of the engine over HTTP, beside transformers on the same machine, model and prompts in the same run.

For each number of concurrent requests both sides take turns and the best turn of each counts, because other work on
the machine only ever slows a turn. Ratios are the figures to look at; the load average says how busy the machine was.
The engine is measured as a client sees it, streamed over HTTP; transformers runs in this process as one static batch of
equal lengths, its best case. Writes `results/engine.json`.
"""

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from smollm2 import smollm2_directory, smollm2_gguf

RESULT = Path(__file__).parent / "results" / "engine.json"
START_DEADLINE_S = 120.0
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
TORCH_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Run:
    """One run of `concurrency` requests: seconds to the first token and between tokens are medians over requests."""

    output_tokens_per_s: float
    first_token_s: float
    inter_token_s: float


@dataclass(frozen=True)
class Figure:
    """The best of several runs of one side, figure by figure."""

    side: str
    dtype: str
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    first_token_s: float
    inter_token_s: float


class Engine:
    """Client of a running engine."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def run(self, prompts: list[list[int]], output_tokens: int) -> Run:
        """All prompts at once, streamed."""
        return asyncio.run(self._run(prompts, output_tokens))

    async def _run(self, prompts: list[list[int]], output_tokens: int) -> Run:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            began_s = time.perf_counter()
            times = await asyncio.gather(*(self._stream(session, prompt, output_tokens) for prompt in prompts))
            wall_s = time.perf_counter() - began_s
        return Run(
            output_tokens_per_s=len(prompts) * output_tokens / wall_s,
            first_token_s=statistics.median(first for first, _ in times),
            inter_token_s=statistics.median((last - first) / (output_tokens - 1) for first, last in times),
        )

    async def _stream(self, session: aiohttp.ClientSession, prompt: list[int], tokens: int) -> tuple[float, float]:
        body = {
            "model": "bench",
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began_s = time.perf_counter()
        first_s, last_s, counted = 0.0, 0.0, 0
        async with session.post(f"{self._url}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if event.get("usage"):
                    counted = event["usage"]["completion_tokens"]
                elif event["choices"]:
                    last_s = time.perf_counter() - began_s
                    first_s = first_s or last_s
        if counted != tokens:
            raise SystemExit(f"the engine generated {counted} tokens, {tokens} were asked for")
        return first_s, last_s


class Transformers:
    """Greedy decoding by transformers with its own cache, one static batch."""

    def __init__(self, dtype: str) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(smollm2_directory(), dtype=TORCH_DTYPES[dtype])
        self._model = model.eval()

    def run(self, prompts: list[list[int]], output_tokens: int) -> Run:
        """All prompts as one batch of equal lengths."""
        with torch.inference_mode():
            began_s = time.perf_counter()
            cache = DynamicCache(config=self._model.config)
            output = self._model(torch.tensor(prompts), past_key_values=cache, logits_to_keep=1)
            pending = output.logits[:, -1].argmax(-1, keepdim=True)
            first_s = time.perf_counter() - began_s
            for _ in range(output_tokens - 1):
                output = self._model(pending, past_key_values=cache)
                pending = output.logits[:, -1].argmax(-1, keepdim=True)
            wall_s = time.perf_counter() - began_s
        rate = len(prompts) * output_tokens / wall_s
        return Run(rate, first_s, (wall_s - first_s) / (output_tokens - 1))


@contextmanager
def engine(dtype: str, threads: int) -> Iterator[tuple[Engine, float]]:
    """A started engine and the seconds from its start to ready."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    arguments = ["serve", "--model", str(smollm2_gguf()), "--served-names", "bench", "--host", "127.0.0.1"]
    arguments += ["--port", str(port), "--dtype", dtype, "--threads", str(threads), "--max-running", "32"]
    began_s = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "forebay.engine", *arguments], stderr=subprocess.DEVNULL)
    try:
        while not _ready(port):
            if process.poll() is not None or time.perf_counter() - began_s > START_DEADLINE_S:
                raise SystemExit(f"the engine did not start: exit code {process.poll()}")
            time.sleep(0.02)
        yield Engine(port), time.perf_counter() - began_s
    finally:
        process.terminate()
        process.wait(timeout=60)


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=1) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def prompts_of(count: int, tokens: int, seed: int) -> list[list[int]]:
    """Distinct prompts of ordinary token ids, so that no prefix is reused by accident."""
    random = np.random.default_rng(seed)
    return [[int(token) for token in random.integers(20, 49_000, tokens)] for _ in range(count)]


def compare(ours: Engine, reference: Transformers, options: argparse.Namespace, dtype: str) -> list[Figure]:
    """Both sides in turns for each concurrency, and single long prompts for the time to the first token."""
    figures: list[Figure] = []
    workloads = [(count, options.prompt_tokens, options.output_tokens) for count in options.concurrency]
    workloads.append((1, options.long_prompt_tokens, 2))
    seed = 0
    for count, prompt_tokens, output_tokens in workloads:
        runs: dict[str, list[Run]] = {"forebay": [], "forebay warm prefix": [], "transformers": []}
        for _ in range(options.repeats):
            seed += 1
            prompts = prompts_of(count, prompt_tokens, seed)
            runs["forebay"].append(ours.run(prompts, output_tokens))
            runs["transformers"].append(reference.run(prompts, output_tokens))
            if prompt_tokens == options.long_prompt_tokens:
                runs["forebay warm prefix"].append(ours.run(prompts, output_tokens))
        for side, measured in runs.items():
            if measured:
                figures.append(_figure(side, dtype, (count, prompt_tokens, output_tokens), measured))
                print(_line(figures[-1]), flush=True)
    return figures


def _figure(side: str, dtype: str, workload: tuple[int, int, int], runs: list[Run]) -> Figure:
    return Figure(
        side,
        dtype,
        *workload,
        output_tokens_per_s=round(max(run.output_tokens_per_s for run in runs), 1),
        first_token_s=round(min(run.first_token_s for run in runs), 4),
        inter_token_s=round(min(run.inter_token_s for run in runs), 5),
    )


def _line(figure: Figure) -> str:
    workload = f"{figure.concurrency:3} x {figure.prompt_tokens:4} + {figure.output_tokens:3}"
    return (
        f"{figure.dtype} {figure.side:20} {workload}: {figure.output_tokens_per_s:7.1f} tok/s, "
        f"first token {figure.first_token_s * 1e3:7.1f} ms, inter-token {figure.inter_token_s * 1e3:6.1f} ms"
    )


def ratios(figures: list[Figure]) -> dict[str, float]:
    """Ours over transformers: throughput by concurrency (more is better), first-token time (less is better)."""
    by_key = {(figure.side, figure.dtype, figure.concurrency, figure.prompt_tokens): figure for figure in figures}
    found: dict[str, float] = {}
    for (side, dtype, count, prompt_tokens), ours in by_key.items():
        if side == "transformers":
            continue
        reference = by_key["transformers", dtype, count, prompt_tokens]
        if ours.output_tokens > 2:
            found[f"{dtype} output tokens/s at {count}"] = round(
                ours.output_tokens_per_s / reference.output_tokens_per_s, 2
            )
        if count == 1:
            name = f"{dtype} first token, {prompt_tokens} tokens" + (", warm" if "warm" in side else "")
            found[name] = round(ours.first_token_s / reference.first_token_s, 2)
    return found


def machine(threads: int) -> dict[str, object]:
    """Names what the figures depend on."""
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    values = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    flags = values.get("flags", "").split()
    return {
        "cpu": values.get("model name", platform.machine()),
        "cores": os.cpu_count(),
        "threads": threads,
        "flags": [flag for flag in FLAGS if flag in flags],
        "load_average_before": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def main() -> None:
    """Run the bench, print figures and ratios, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", choices=list(TORCH_DTYPES), default=["bf16"])
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--prompt-tokens", type=int, default=155)
    parser.add_argument("--long-prompt-tokens", type=int, default=982)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    described = machine(options.threads)
    print(json.dumps(described))
    figures: list[Figure] = []
    starts: dict[str, float] = {}
    for dtype in options.dtypes:
        reference = Transformers(dtype)
        with engine(dtype, options.threads) as (ours, start_s):
            starts[dtype] = round(start_s, 2)
            print(f"{dtype} forebay ready after {start_s:.1f} s", flush=True)
            figures += compare(ours, reference, options, dtype)
    found = ratios(figures)
    for name, ratio in found.items():
        print(f"{name}: {ratio} x transformers")
    described["load_average_after"] = round(os.getloadavg()[0], 2)
    document = {
        "machine": described,
        "start_to_ready_s": starts,
        "ratio_to_transformers": found,
        "figures": [asdict(figure) for figure in figures],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
