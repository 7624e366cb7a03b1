"""What speculation gives and costs on the real small model: the runner and the scheduler in one process, no HTTP.

Each case serves the same requests with and without drafts, round by round, and compares medians. One thread and the
CPU time of the process are what counts: wall time on a shared machine measures the neighbours. Writes
`results/speculation.json`. Cases: text that repeats its prompt (look-up pays), sampled text that does not (it must not
cost: <= 1.05), a model that drafts for itself (every draft right) and one of its first layers (nearly none).
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from draft_models import truncated_model
from forebay.engine.limits import PoolGroup, SchedulerLimits
from forebay.engine.loader.checkpoint import read_config, read_tokenizer
from forebay.engine.request import DraftKind, NewRequest, SamplingParams, Speculation
from forebay.engine.runner.build import Drafting, build_runner
from forebay.engine.runner.compute import Compute, choose_compute, cpu_features
from forebay.engine.runner.executor import ExecutorSizes
from forebay.engine.runner.runner import StepRunner
from forebay.engine.scheduler import Scheduler
from serve_loop import Answers, serve
from smollm2 import smollm2_directory

RESULT = Path(__file__).parent / "results" / "speculation.json"
LIMITS = SchedulerLimits(
    groups=(PoolGroup("full", 800),),
    page_tokens=16,
    max_running=16,
    max_waiting=64,
    max_batch_tokens=512,
    max_prompt_tokens=1500,
    max_sequence_tokens=2000,
)
POOR_LIMIT = 1.05
TRUNCATED_LAYERS = 6
COPY = (
    "<|im_start|>user\nHere is a list:\n"
    + "".join(f"- item number {number} costs {number * 7 % 13} coins\n" for number in range(12))
    + "\nWrite the same list again.<|im_end|>\n<|im_start|>assistant\n- item number 0 costs"
)
QUESTIONS = (
    "Tell a short story about a lighthouse.",
    "What should a traveller know about mountains?",
    "Describe how bread is made.",
    "Write a letter to an old friend.",
)


@dataclass(frozen=True, slots=True)
class Case:
    """Requests that are served with and without drafts of one kind."""

    name: str
    kind: DraftKind
    prompts: tuple[tuple[int, ...], ...]
    sampling: SamplingParams
    output_tokens: int
    draft: Path | None = None
    limit: float | None = None
    """Largest allowed ratio of time with drafts to time without."""


def cases(encode: Any, drafts: dict[str, Path]) -> list[Case]:
    """All cases; `encode` gives the ids of a text, `drafts` the folders of draft models."""
    chats = [tuple(encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")) for text in QUESTIONS]
    copy, greedy, warm = tuple(encode(COPY)), SamplingParams(), SamplingParams(1.0, seed=11)
    found = [Case("copy, 1 request", DraftKind.NGRAM, (copy,), greedy, 120)]
    found.append(Case("copy, 8 requests", DraftKind.NGRAM, (copy,) * 8, greedy, 96))
    found.append(Case("sampled text, 1 request", DraftKind.NGRAM, (chats[0],), warm, 160, limit=POOR_LIMIT))
    found.append(Case("sampled text, 8 requests", DraftKind.NGRAM, (*chats, *chats), warm, 96, limit=POOR_LIMIT))
    found.append(Case("draft is the model itself", DraftKind.MODEL, (chats[1],), warm, 96, drafts["itself"]))
    found.append(
        Case(
            f"draft is its first {TRUNCATED_LAYERS} layers",
            DraftKind.MODEL,
            (chats[1],),
            warm,
            160,
            drafts["truncated"],
            POOR_LIMIT,
        )
    )
    return found


def requests(case: Case, speculation: Speculation | None) -> list[NewRequest]:
    """The requests of a case."""
    return [
        NewRequest(
            request_id=index,
            prompt=prompt,
            sampling=replace(case.sampling, seed=case.sampling.seed + index),
            max_new_tokens=case.output_tokens,
            stop_token_ids=frozenset(),
            ignore_eos=True,
            tenant=str(index),
            priority=0,
            deadline_s=float("inf"),
            speculation=speculation,
        )
        for index, prompt in enumerate(case.prompts)
    ]


def timed(runner: StepRunner, served: Sequence[NewRequest]) -> tuple[float, float, Answers]:
    """CPU and wall seconds for decoding `served`, prefill included, on an empty prefix cache."""
    scheduler = Scheduler(LIMITS, str(time.monotonic_ns()).encode())
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    answers = serve(scheduler, runner, served)
    return time.process_time() - cpu_s, time.perf_counter() - wall_s, answers


def measure(case: Case, compute: Compute, rounds: int) -> dict[str, Any]:
    """Serve a case `rounds` times with and without drafts, in turns."""
    path = smollm2_directory()
    sizes = ExecutorSizes((800,), LIMITS.page_tokens, LIMITS.max_running, LIMITS.max_batch_tokens, threads=1)
    runner = build_runner(path, read_config(path), compute, sizes, Drafting(model=case.draft))
    sides: dict[str, list[tuple[float, float]]] = {"plain": [], "drafts": []}
    answers: dict[str, Answers] = {}
    for turn in range(rounds + 1):
        for side, wanted in (("plain", None), ("drafts", Speculation(case.kind, 4))):
            cpu_s, wall_s, answers[side] = timed(runner, requests(case, wanted))
            if turn:
                sides[side].append((cpu_s, wall_s))
    runner.close()
    return _row(case, sides, answers)


def _row(case: Case, sides: dict[str, list[tuple[float, float]]], answers: dict[str, Answers]) -> dict[str, Any]:
    tokens = case.output_tokens * len(case.prompts)
    plain_cpu_s, plain_s = (statistics.median(column) for column in zip(*sides["plain"], strict=True))
    cpu_s, wall_s = (statistics.median(column) for column in zip(*sides["drafts"], strict=True))
    ratio = cpu_s / plain_cpu_s
    reports = [end.speculation for end in answers["drafts"].ended.values() if end.speculation is not None]
    accepted, drafted = sum(report.accepted for report in reports), sum(report.drafted for report in reports)
    verified = sum(report.steps for report in reports)
    same = sum(answers["plain"].tokens[name] == found for name, found in answers["drafts"].tokens.items())
    return {
        "case": case.name,
        "kind": case.kind.value,
        "requests": len(case.prompts),
        "output_tokens": case.output_tokens,
        "plain_tokens_per_cpu_s": round(tokens / plain_cpu_s, 1),
        "drafts_tokens_per_cpu_s": round(tokens / cpu_s, 1),
        "plain_tokens_per_s": round(tokens / plain_s, 1),
        "drafts_tokens_per_s": round(tokens / wall_s, 1),
        "time_ratio": round(ratio, 3),
        "time_ratio_limit": case.limit,
        "reached": case.limit is None or ratio <= case.limit,
        "plain_steps": answers["plain"].steps,
        "steps": answers["drafts"].steps,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance": round(accepted / max(drafted, 1), 3),
        "mean_acceptance_tokens": round(1 + accepted / max(verified, 1), 2),
        "same_tokens": f"{same} of {len(case.prompts)}",
    }


def main() -> int:
    """Run all cases; the exit code is the number of limits that are not kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--cases", default="", help="only cases whose name has this text")
    arguments = parser.parse_args()
    features = cpu_features()
    compute = choose_compute(arguments.dtype, features, arguments.kernels)
    path = smollm2_directory()
    tokenizer = Tokenizer.from_str(read_tokenizer(path).tokenizer_json)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        drafts = {"itself": path, "truncated": truncated_model(path, Path(folder), TRUNCATED_LAYERS)}
        for case in cases(lambda text: tokenizer.encode(text).ids, drafts):
            if arguments.cases in case.name:
                rows.append(measure(case, compute, arguments.rounds))
                print(json.dumps(rows[-1]), flush=True)
    found = {
        "model": "SmolLM2-135M-Instruct",
        "machine": {"cpu": features.model_name, "system": platform.platform(), "threads": 1},
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "compute": {"dtype": arguments.dtype, "kernels": compute.kernels, "reason": compute.reason},
        "rounds": arguments.rounds,
        "rows": rows,
    }
    if not arguments.cases:
        RESULT.write_text(json.dumps(found, indent=2) + "\n")
    return sum(not row["reached"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
