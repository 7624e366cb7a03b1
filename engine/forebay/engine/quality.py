"""How much a precision costs in quality: perplexity ratio and divergence against fp32 on a fixed text.

`quality_text.txt` (stories, prose, code, questions written for this purpose, and Lincoln's second inaugural address of
1865) is cut into windows; every position predicts its next token with the reference (fp32 on torch) and with the
candidate, side by side, in steps small enough that logits of large vocabularies stay small. Called by the `quality`
command and by tests; needs torch.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from forebay.engine.cpu.support import cpu_problem
from forebay.engine.loader.checkpoint import ModelConfig, read_config, read_tokenizer, resolve_model_path
from forebay.engine.runner.build import build_executor
from forebay.engine.runner.compute import Compute, choose_compute, cpu_features
from forebay.engine.runner.executor import Executor, ExecutorSizes, StepInputs

WINDOW_TOKENS: Final = 1024
_STEP_TOKENS: Final = 128
_PAGE_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Quality:
    """One precision against fp32 over `tokens` predictions.

    `perplexity_ratio` is candidate over reference. `mean_kl` and `p99_kl` are nats a token, KL(reference || candidate).
    `agreement` is the share of positions whose likeliest token is the reference's.
    """

    dtype: str
    kernels: str
    tokens: int
    perplexity: float
    perplexity_ratio: float
    mean_kl: float
    p99_kl: float
    agreement: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Two executors of one model with `groups` layer groups."""

    reference: Executor
    candidate: Executor
    groups: int


@dataclass(frozen=True, slots=True)
class _Losses:
    """Of each predicted token, fp32 [n]: negative log likelihood under both, divergence, same best token."""

    reference: torch.Tensor
    candidate: torch.Tensor
    divergence: torch.Tensor
    agrees: torch.Tensor


def text_windows(path: Path, text: str, window_tokens: int) -> list[list[int]]:
    """`text` as token ids in windows of at most `window_tokens`, each begun with the model's first token if it has one.

    `path` is a resolved checkpoint. A rest of one token predicts nothing and is left out.
    """
    source = read_tokenizer(path)
    ids = Tokenizer.from_str(source.tokenizer_json).encode(text, add_special_tokens=False).ids
    first = [source.bos_id] if source.add_bos and source.bos_id is not None else []
    size = window_tokens - len(first)
    windows = [first + ids[at : at + size] for at in range(0, len(ids), size)]
    return [window for window in windows if len(window) > 1]


def measure(pair: Pair, windows: Sequence[Sequence[int]], compute: Compute) -> Quality:
    """Compare two executors with pages of 16 tokens for a window; `compute` names the candidate."""
    losses = [_losses(*logits) for window in windows for logits in _logits(pair, window)]
    exact = torch.cat([part.reference for part in losses]).double().mean().item()
    got = torch.cat([part.candidate for part in losses]).double().mean().item()
    divergence = torch.cat([part.divergence for part in losses])
    return Quality(
        dtype=compute.weights,
        kernels=compute.kernels,
        tokens=len(divergence),
        perplexity=math.exp(got),
        perplexity_ratio=math.exp(got - exact),
        mean_kl=divergence.double().mean().item(),
        p99_kl=divergence.quantile(0.99).item(),
        agreement=torch.cat([part.agrees for part in losses]).double().mean().item(),
    )


def _logits(pair: Pair, window: Sequence[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Logits of both and the tokens that really come next, step by step through one window."""
    ids = np.array(window, dtype=np.int64)
    pages = np.arange(-(-len(ids) // _PAGE_TOKENS), dtype=np.int32)[None]
    for start in range(0, len(ids) - 1, _STEP_TOKENS):
        end = min(start + _STEP_TOKENS, len(ids) - 1)
        inputs = StepInputs(
            tokens=ids[start:end],
            positions=np.arange(start, end),
            starts=np.array([start]),
            counts=np.array([end - start]),
            tables=(pages,) * pair.groups,
            sampled=np.arange(end - start),
        )
        yield pair.reference.logits(inputs), pair.candidate.logits(inputs), torch.from_numpy(ids[start + 1 : end + 1])


def _losses(reference: torch.Tensor, candidate: torch.Tensor, following: torch.Tensor) -> _Losses:
    expected, got = reference.log_softmax(-1), candidate.log_softmax(-1)
    return _Losses(
        reference=functional.nll_loss(expected, following, reduction="none"),
        candidate=functional.nll_loss(got, following, reduction="none"),
        divergence=functional.kl_div(got, expected, reduction="none", log_target=True).sum(-1).clamp_min_(0),
        agrees=reference.argmax(-1) == candidate.argmax(-1),
    )


def qualities(model: str, precisions: Sequence[str], kernels: str, threads: int) -> Iterator[Quality]:
    """Quality of each of `precisions` for the checkpoint at `model`, one loaded at a time beside the reference.

    Raises `InvalidSpec` for a checkpoint, precision or kernels that cannot be had.
    """
    path = resolve_model_path(Path(model))
    config = read_config(path)
    text = (files("forebay.engine") / "quality_text.txt").read_text(encoding="utf-8")
    windows = text_windows(path, text, min(WINDOW_TOKENS, config.max_positions))
    torch.set_num_threads(threads)
    features = cpu_features()
    exact = _executor(path, config, choose_compute("fp32", features), threads)
    for dtype in precisions:
        problem = cpu_problem(config, features, dtype, _PAGE_TOKENS)
        compute = choose_compute(dtype, features, kernels, cpu_problem=problem)
        candidate = _executor(path, config, compute, threads)
        with torch.inference_mode():
            yield measure(Pair(exact, candidate, len(config.layer_groups)), windows, compute)


def _executor(path: Path, config: ModelConfig, compute: Compute, threads: int) -> Executor:
    pages = -(-min(WINDOW_TOKENS, config.max_positions) // _PAGE_TOKENS)
    groups = len(config.layer_groups)
    return build_executor(
        path, config, compute, ExecutorSizes((pages,) * groups, _PAGE_TOKENS, 1, _STEP_TOKENS, threads)
    )


def table(rows: Sequence[Quality]) -> str:
    """`rows` as text with a header line."""
    lines = ["dtype  kernels  tokens  perplexity  ratio     mean KL    p99 KL    same best"]
    lines += [
        f"{row.dtype:<6} {row.kernels:<8} {row.tokens:>6}  {row.perplexity:>10.4f}  {row.perplexity_ratio:.5f}  "
        f"{row.mean_kl:.6f}  {row.p99_kl:.6f}  {row.agreement:.4f}"
        for row in rows
    ]
    return "\n".join(lines)


def document(model: str, rows: Sequence[Quality]) -> dict[str, Any]:
    """`rows` as the JSON document of `--json`."""
    return {"model": Path(model).name, "reference": "fp32 on torch", "qualities": [asdict(row) for row in rows]}
