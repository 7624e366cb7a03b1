"""The C executor on the real small model, against the torch executor that transformers is held against.

In fp32 the greedy tokens are the same: what the C executor generates, step by step and with batch mates, is what torch
finds likeliest at every position when it reads prompt and answer in one pass. Other precisions are judged on the text
that the `quality` command uses, against fp32.
"""

from importlib.resources import files

import pytest
import torch
from tokenizers import Tokenizer

from cpu_build import drive, executor_of
from forebay.engine.loader.checkpoint import read_tokenizer
from forebay.engine.quality import Pair, measure, text_windows
from forebay.engine.runner.compute import choose_compute, cpu_features
from smollm2 import smollm2_gguf

pytestmark = pytest.mark.timeout(900)
NEW_TOKENS = 24
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village at the edge of a dark forest, there lived",
    "def fibonacci(n):\n    ",
    " ".join(["The quick brown fox jumps over the lazy dog."] * 8),
]
LARGEST_KL = {"bf16": 0.001, "int8": 0.02, "int4": 0.015}
"""Mean nats a token against fp32; measured figures are in tests/bench/results/quality.json."""
LARGEST_RATIO = {"bf16": 1.005, "int8": 1.02, "int4": 1.02}
"""Perplexity against fp32's."""


def test_fp32_greedy_tokens_equal_torch() -> None:
    path = smollm2_gguf()
    tokenizer = Tokenizer.from_str(read_tokenizer(path).tokenizer_json)
    prompts = [tokenizer.encode(text).ids for text in PROMPTS]
    driven = drive(executor_of(path, "fp32", "cpu"), path)
    for name, prompt in enumerate(prompts):
        driven.add(name, prompt)
    counts = {name: len(prompt) for name, prompt in enumerate(prompts)}
    for _ in range(NEW_TOKENS):
        for name, logits in driven.advance(counts).items():
            driven.sequences[name].tokens.append(int(logits[-1].argmax()))
        counts = dict.fromkeys(counts, 1)
    oracle = drive(executor_of(path, "fp32", "torch"), path)
    for name, prompt in enumerate(prompts):
        tokens = driven.sequences[name].tokens
        oracle.add(name, tokens)
        expected = oracle.advance({name: len(tokens) - 1})[name].argmax(-1).tolist()
        assert tokens[len(prompt) :] == expected[len(prompt) - 1 :]


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_precisions_keep_their_stated_quality(dtype: str) -> None:
    path = smollm2_gguf()
    text = (files("forebay.engine") / "quality_text.txt").read_text(encoding="utf-8")
    windows = text_windows(path, text, 256)[:2]
    pair = Pair(executor_of(path, "fp32", "torch"), executor_of(path, dtype, "cpu"), groups=1)
    with torch.inference_mode():
        quality = measure(pair, windows, choose_compute(dtype, cpu_features(), "cpu"))
    print(quality)
    assert quality.mean_kl < LARGEST_KL[dtype]
    assert quality.perplexity_ratio < LARGEST_RATIO[dtype]
    assert quality.tokens == 510
