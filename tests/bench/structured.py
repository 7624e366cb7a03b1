"""What a grammar costs: inter-token time of constrained and free answers, 8 at a time, on one engine, taking turns.

Both sides have the same prompts and lengths; the constrained side fills a list of objects that is longer than the
answer may be, so that no answer ends early. Every answer is checked to be a beginning of such a list. The figure is
the ratio of the medians over rounds. Writes `results/structured.json`.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from bench_servers import MODEL, engine_server
from forebay.engine.bench import Answer, Target, completion_body, random_prompts, run_load
from forebay.engine.runner.compute import cpu_features

RESULT = Path(__file__).parent / "results" / "structured.json"
CONCURRENT, PROMPT_TOKENS, OUTPUT_TOKENS, TARGET = 8, 155, 64, 1.15
SCHEMAS: dict[str, dict[str, Any]] = {
    "objects": {
        "type": "array",
        "minItems": 40,
        "items": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 40},
                "count": {"type": "integer", "minimum": 0, "maximum": 999},
                "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
            },
            "required": ["name", "count", "tags"],
        },
    },
    "text": {"type": "array", "minItems": 40, "items": {"type": "string", "minLength": 100, "maxLength": 400}},
}


def bodies(seed: int, temperature: float, schema: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The requests of one round of one side."""
    form = {} if schema is None else {"structured_outputs": {"json": schema}, "ignore_eos": False}
    prompts = random_prompts(CONCURRENT, PROMPT_TOKENS, seed)
    return [
        completion_body(MODEL, prompt, OUTPUT_TOKENS, temperature=temperature, seed=place, **form)
        for place, prompt in enumerate(prompts)
    ]


def inter_token_s(target: Target, requests: list[dict[str, Any]], *, constrained: bool) -> float:
    """Median over the answers of one round; every answer must be whole, and a list when constrained."""
    _, answers = run_load(target, requests, CONCURRENT)
    for answer in answers:
        check(answer, constrained=constrained)
    return statistics.median(answer.inter_token_s for answer in answers)


def check(answer: Answer, *, constrained: bool) -> None:
    """A wrong answer makes the figures worthless."""
    if answer.problem or answer.tokens != OUTPUT_TOKENS or (constrained and not answer.text.startswith("[")):
        raise SystemExit(f"a wrong answer: {answer}")


def measure(target: Target, name: str, temperature: float, rounds: int) -> dict[str, Any]:
    """Medians of both sides over rounds in turn."""
    free: list[float] = []
    held: list[float] = []
    for number in range(rounds + 1):
        free_s = inter_token_s(target, bodies(2 * number, temperature, None), constrained=False)
        held_s = inter_token_s(target, bodies(2 * number + 1, temperature, SCHEMAS[name]), constrained=True)
        if number > 0:  # the first round loads the grammar library and compiles
            free.append(free_s)
            held.append(held_s)
    ratio = statistics.median(held) / statistics.median(free)
    return {
        "schema": name,
        "temperature": temperature,
        "rounds": rounds,
        "free_ms": round(1000 * statistics.median(free), 3),
        "constrained_ms": round(1000 * statistics.median(held), 3),
        "ratio": round(ratio, 3),
        "median_of_paired_ratios": round(statistics.median(b / a for a, b in zip(free, held, strict=True)), 3),
        "target": TARGET,
        "reached": ratio <= TARGET,
    }


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtype", default="bf16")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, engine_server(Path(folder), arguments.dtype, 1 << 30) as server:
        for name in SCHEMAS:
            for temperature in (0.0, 1.0):
                rows.append(measure(server.target, name, temperature, arguments.rounds))
                print(rows[-1], flush=True)
    document = {
        "machine": asdict(cpu_features()) | {"flags": sorted(cpu_features().flags & {"avx512f", "avx512_bf16"})},
        "load_average": os.getloadavg()[0],
        "dtype": arguments.dtype,
        "concurrent": CONCURRENT,
        "rows": rows,
    }
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
