"""The C library for CPU beside torch, in the shapes of SmolLM2-135M: single routines, whole steps, attention's GB/s.

Weights are random and different in every layer, so a step reads as much memory as the real model's. Candidates of a
comparison take turns, and minimum and median of their wall times are reported together with the machine's load: on a
shared machine ratios are worth more than times. Writes `results/kernels.json`.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from forebay.kernels import cpu
from forebay.kernels.cpu.records import OpKind
from random_decoder import DecoderShape, RandomDecoder, build_decoder

RESULT = Path(__file__).parent / "results" / "kernels.json"
SHAPE = DecoderShape()
MATRICES = {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536)}
# Name: contexts and tokens of the rows in the step.
STEPS = {
    "decode 1 x 230": ([230], [1]),
    "decode 8 x 230": ([230] * 8, [1] * 8),
    "decode 32 x 230": ([230] * 32, [1] * 32),
    "decode 32 x 1000": ([1000] * 32, [1] * 32),
    "prefill 256 of 256": ([256], [256]),
    "prefill 512 of 1000": ([1000], [512]),
}
Figures = dict[str, float]


def take_turns(candidates: dict[str, Callable[[], object]], seconds: float) -> dict[str, Figures]:
    """Milliseconds of each candidate, minimum and median; every candidate runs once before the clock starts."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        call()
    end = time.monotonic() + seconds * len(candidates)
    while time.monotonic() < end or min(map(len, times.values())) < 3:
        for name, call in candidates.items():
            begin = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - begin) * 1e3)
    return {
        name: {"min_ms": round(min(taken), 3), "median_ms": round(statistics.median(taken), 3)}
        for name, taken in times.items()
    }


def steps(decoder: RandomDecoder, names: list[str], seconds: float) -> dict[str, object]:
    """Whole steps by name."""
    found: dict[str, object] = {}
    for name in names:
        step = decoder.step(*STEPS[name])
        found[name] = take_turns({"step": partial(decoder.tape.run, step)}, seconds)["step"]
    return found


def routines(library: cpu.CpuLibrary, decoder: RandomDecoder, name: str, seconds: float) -> dict[str, Figures]:
    """Each kind of routine alone, all of a step's ops of that kind."""
    step = decoder.step(*STEPS[name])
    candidates: dict[str, Callable[[], object]] = {}
    for kind in OpKind:
        ops = [op for op in decoder.ops if op.record.op.kind == kind]
        if ops:
            tape = cpu.Tape(library, ops, 512)
            candidates[kind.name.lower()] = partial(tape.run, step)
    return take_turns(candidates, seconds)


def linear_tape(library: cpu.CpuLibrary, weights: list[torch.Tensor], kind: cpu.NumberKind, rows: int) -> cpu.Tape:
    """All the matrices as `kind`, one after the other."""
    ops = []
    for weight in weights:
        x = cpu.allocate_activation(cpu.activation_kind(kind).allocate, rows, weight.shape[1])
        ops.append(cpu.linear(x, cpu.pack_linear(weight, kind), torch.zeros(rows, weight.shape[0])))
    return cpu.Tape(library, ops, rows)


def call_all(function: Callable[..., object], pairs: Sequence[tuple[object, object]]) -> None:
    """The function on every pair of input and weight."""
    for x, weight in pairs:
        function(x, weight)


def linear_beside_torch(library: cpu.CpuLibrary, rows: int, seconds: float) -> dict[str, Figures]:
    """The 4 matrices of 30 layers (6 for many rows, times 5) in every kind, beside torch's bf16 and dynamic int8."""
    layers = 30 if rows <= 32 else 6
    weights = [torch.randn(n, k) * k**-0.5 for _ in range(layers) for n, k in MATRICES.values()]
    step = RandomDecoder.plain_step(rows)
    candidates: dict[str, Callable[[], object]] = {}
    for kind in (cpu.NumberKind.BF16, cpu.NumberKind.INT8, cpu.NumberKind.INT4):
        candidates[kind.name.lower()] = partial(linear_tape(library, weights, kind, rows).run, step)
    inputs = [torch.randn(rows, weight.shape[1]) for weight in weights]
    halves = [(x.bfloat16(), weight.bfloat16()) for x, weight in zip(inputs, weights, strict=True)]
    packed = [(x, torch_int8(weight)) for x, weight in zip(inputs, weights, strict=True)]
    candidates["torch bf16"] = partial(call_all, functional.linear, halves)
    candidates["torch int8"] = partial(call_all, torch.ops.quantized.linear_dynamic, packed)
    found = take_turns(candidates, seconds)
    return {name: {key: round(value * 30 / layers, 3) for key, value in ms.items()} for name, ms in found.items()}


def torch_int8(weight: torch.Tensor) -> object:
    """A weight in torch's own packed form for dynamic int8."""
    scales = (weight.abs().amax(dim=1) / 127).double()
    zeros = torch.zeros(weight.shape[0], dtype=torch.long)
    packed: object = torch.ops.quantized.linear_prepack(
        torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8), None
    )
    return packed


def attention_beside_stream(
    library: cpu.CpuLibrary, decoder: RandomDecoder, name: str, seconds: float
) -> dict[str, float]:
    """GB/s of KV that decode attention reads, beside a plain read and a copy of memory in the same run."""
    contexts = STEPS[name][0]
    step = decoder.step(*STEPS[name])
    tape = cpu.Tape(library, [op for op in decoder.ops if op.record.op.kind == OpKind.ATTENTION], 512)
    large = torch.zeros(64 << 20)
    target = torch.zeros_like(large)
    found = take_turns(
        {
            "attention": lambda: tape.run(step),
            "read": large.sum,
            "copy": lambda: target.copy_(large),
        },
        seconds,
    )
    kv_bytes = sum(contexts) * SHAPE.layers * cpu.page_bytes(SHAPE.kv_heads, 1, SHAPE.head_dim, torch.bfloat16)
    moved = {"attention": kv_bytes, "read": large.nbytes, "copy": 2 * large.nbytes}
    return {f"{key}_gb_s": round(moved[key] / found[key]["min_ms"] / 1e6, 2) for key in moved}


def gathered_attention(decoder: RandomDecoder, name: str, seconds: float) -> Figures:
    """Torch's way for the same rows: gather pages to contiguous keys and values, then grouped attention, 30 layers."""
    contexts = STEPS[name][0]
    rows, tokens = len(contexts), -(-contexts[0] // decoder.page_tokens) * decoder.page_tokens
    pool = torch.randn(rows * tokens, SHAPE.kv_heads, SHAPE.head_dim).bfloat16()
    places = torch.randperm(rows * tokens)
    query = torch.randn(rows, SHAPE.kv_heads, SHAPE.heads // SHAPE.kv_heads, SHAPE.head_dim).bfloat16()
    shape = (rows, tokens, SHAPE.kv_heads, SHAPE.head_dim)

    def attend() -> None:
        for _ in range(SHAPE.layers):
            keys = pool.index_select(0, places).view(shape).transpose(1, 2)
            values = pool.index_select(0, places).view(shape).transpose(1, 2)
            functional.scaled_dot_product_attention(query, keys, values)

    return take_turns({"torch": attend}, seconds)["torch"]


def figures(library: cpu.CpuLibrary, seconds: float) -> dict[str, object]:
    """Everything, one decoder at a time."""
    whole: dict[str, object] = {}
    parts: dict[str, object] = {}
    attention: dict[str, object] = {}
    for kind in (cpu.NumberKind.INT8, cpu.NumberKind.INT4, cpu.NumberKind.BF16):
        decoder = build_decoder(library, kind, pages=32 * 63)
        whole[kind.name.lower()] = steps(decoder, list(STEPS), seconds)
        if kind == cpu.NumberKind.INT8:
            for name in ("decode 1 x 230", "decode 32 x 230", "prefill 256 of 256"):
                parts[name] = routines(library, decoder, name, seconds / 4)
            for name in ("decode 32 x 230", "decode 32 x 1000"):
                attention[name] = {
                    **attention_beside_stream(library, decoder, name, seconds),
                    "torch_gather_sdpa": gathered_attention(decoder, name, seconds / 2),
                }
        del decoder
    linears = {f"{rows} rows": linear_beside_torch(library, rows, seconds / 2) for rows in (1, 8, 32, 256)}
    return {"step": whole, "routine_int8": parts, "linear_30_layers": linears, "decode_attention": attention}


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each candidate of a comparison")
    seconds = parser.parse_args().seconds
    library = cpu.load()
    if isinstance(library, cpu.Unavailable):
        sys.exit(library.reason)
    before = os.getloadavg()
    found = figures(library, seconds)
    machine = {
        "cpus": os.cpu_count(),
        "platform": platform.platform(),
        "library": library.describe(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load_before": before,
        "load_after": os.getloadavg(),
    }
    RESULT.write_text(json.dumps({"machine": machine, **found}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found["step"], indent=1))


if __name__ == "__main__":
    main()
