"""Real weights with windows and mixed K-quants: Gemma-3-270m against transformers' own reading of the same file.

The text is longer than the window of 512 tokens, so pages fall out of it. The oracle reads it in one pass; ours comes
in chunks, mixed with other sequences, and token by token. Logits are compared at the end of every step.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from forebay.engine.loader.checkpoint import read_config, read_tokenizer
from forebay.engine.models.executors import build_torch_executor
from forebay.engine.runner.compute import Compute, choose_compute, cpu_features, parse_cpuinfo
from forebay.engine.runner.executor import Executor, ExecutorSizes, StepInputs
from model_build import PAGE_TOKENS
from reference_models import GEMMA3, REPOSITORY

pytestmark = pytest.mark.timeout(900)
LONG, SHORT = 600, 40
STEPS: list[dict[int, int]] = [{0: 300}, {0: 200, 1: 17}, *[{0: 1, 1: 1}] * 12, {0: 70, 1: 1}, *[{0: 1, 1: 1}] * 10]
"""Tokens of sequence 0 (the long one) and 1 in each step."""
BF16_KL = 0.005
"""Largest mean divergence per token, in nats, between bf16 and fp32 next-token distributions."""


@pytest.fixture(scope="module", autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    """Two texts as tokens; the second is from the middle of the first."""
    tokenizer = Tokenizer.from_str(read_tokenizer(GEMMA3.gguf()).tokenizer_json)
    text = (REPOSITORY / "engine/forebay/engine/quality_text.txt").read_text()
    ids = tokenizer.encode(text).ids
    assert len(ids) > LONG
    return [ids[:LONG], [ids[0], *ids[200 : 200 + SHORT]]]


def step_ends() -> list[list[int]]:
    """Position of the last token of every step, for each sequence."""
    return [np.cumsum([step[row] for step in STEPS if row in step]).tolist() for row in (0, 1)]


@pytest.fixture(scope="module")
def expected(texts: list[list[int]]) -> list[torch.Tensor]:
    """transformers' logits at the end of every step."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - seconds of imports that only this fixture needs

    oracle: Any = AutoModelForCausalLM.from_pretrained(GEMMA3.directory(), dtype=torch.float32).eval()
    with torch.inference_mode():
        return [
            oracle(torch.tensor([text]), logits_to_keep=torch.tensor(ends) - 1).logits[0]
            for text, ends in zip(texts, step_ends(), strict=True)
        ]


def executor_of(path: Path, compute: Compute) -> Executor:
    sizes = ExecutorSizes((60, 60), PAGE_TOKENS, 2, 512, threads=2)
    return build_torch_executor(path, read_config(path), compute, sizes)


def run_steps(executor: Executor, texts: list[list[int]]) -> list[torch.Tensor]:
    """Logits at the end of every step; pages behind the window are replaced by page 0, which nobody owns."""
    pages = 1 + np.random.default_rng(2).permutation(59)
    tables = np.zeros((2, 40), dtype=np.int32)
    tables[0, :38], tables[1, :4] = pages[:38], pages[38:42]
    done = np.zeros(2, dtype=np.int64)
    parts: list[list[torch.Tensor]] = [[], []]
    for step in STEPS:
        rows = np.array(list(step))
        counts = np.array(list(step.values()))
        starts = done[rows]
        flat = [np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        sliding = tables[rows].copy()
        for row, start in enumerate(starts):
            sliding[row, : max(0, int(start) + 1 - 512) // PAGE_TOKENS] = 0
        inputs = StepInputs(
            tokens=np.concatenate([np.array(texts[row])[positions] for row, positions in zip(rows, flat, strict=True)]),
            positions=np.concatenate(flat),
            starts=starts,
            counts=counts,
            tables=(tables[rows], sliding),
            sampled=np.cumsum(counts) - 1,
        )
        for row, logits in zip(rows, executor.logits(inputs), strict=True):
            parts[row].append(logits.clone())
        done[rows] += counts
    return [torch.stack(part) for part in parts]


def test_logits_equal_transformers_beyond_the_window(texts: list[list[int]], expected: list[torch.Tensor]) -> None:
    found = run_steps(executor_of(GEMMA3.gguf(), choose_compute("fp32", cpu_features())), texts)
    for got, want in zip(found, expected, strict=True):
        assert torch.equal(got.argmax(-1), want.argmax(-1))
        assert float((got - want).abs().max()) < 2e-3


def test_both_layouts_describe_the_same_model() -> None:
    """The reference keeps the single-precision epsilon of the file; ours is the decimal it was written from."""
    reference = read_config(GEMMA3.directory())
    assert read_config(GEMMA3.gguf()) == replace(reference, rms_eps=1e-6)
    assert reference.rms_eps == pytest.approx(1e-6)
    assert [group.window_tokens for group in reference.layer_groups] == [0, 512]


def test_bf16_stays_within_its_stated_tolerance(texts: list[list[int]], expected: list[torch.Tensor]) -> None:
    compute = choose_compute("bf16", parse_cpuinfo("flags: avx512_bf16"))
    found = torch.cat(run_steps(executor_of(GEMMA3.gguf(), compute), texts)).log_softmax(-1)
    exact = torch.cat(expected).log_softmax(-1)
    divergence = (exact.exp() * (exact - found)).sum(-1)
    agreement = (exact.argmax(-1) == found.argmax(-1)).float().mean()
    print(f"bf16: mean divergence {float(divergence.mean()):.5f} nats, agreement {float(agreement):.4f}")
    assert 0 < float(divergence.mean()) < BF16_KL
