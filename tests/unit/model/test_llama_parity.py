"""Logits of tiny random Llama models against transformers: prefill, chunks, mixed batches, decode, all shapes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forebay.engine.attention.batch import IntArray, build_batch, flat_positions
from forebay.engine.attention.paged import PagedCache
from forebay.engine.loader.checkpoint import read_config
from forebay.engine.loader.weights import open_tensors
from forebay.engine.models.registry import Model, load_model
from model_build import PAGE_TOKENS, save_tiny_llama
from tiny_gguf import write_tiny_gguf

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "multi-head": {"num_key_value_heads": 4},
    "one KV head": {"num_key_value_heads": 1},
    "groups of three": {"hidden_size": 66, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10},
    "odd head size": {"head_dim": 22},
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "llama3 positions": {"rope_parameters": LLAMA3},
    "linear positions": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
}


def all_logits(path: Path, prompts: list[list[int]], chunks: list[list[int]]) -> list[torch.Tensor]:
    """Logits of every position of every prompt, computed in steps: `chunks[step][row]` tokens of each row."""
    config = read_config(path)
    model = load_model(open_tensors(path, config), config, lambda tensor: tensor.float(), 2)
    cache = PagedCache(config, pages=64, page_tokens=PAGE_TOKENS, dtype=torch.float32)
    tables = np.random.default_rng(1).permutation(64).reshape(4, 16)
    done = np.zeros(len(prompts), dtype=np.int64)
    pieces: list[list[torch.Tensor]] = [[] for _ in prompts]
    for step in np.array(chunks):
        rows = np.flatnonzero(step)
        logits = _step(model, cache, [prompts[row] for row in rows], done[rows], step[rows], tables[rows])
        for row, part in zip(rows, logits, strict=True):
            pieces[row].append(part)
        done += step
    return [torch.cat(parts) for parts in pieces]


def _step(
    model: Model, cache: PagedCache, prompts: list[list[int]], starts: IntArray, counts: IntArray, tables: IntArray
) -> tuple[torch.Tensor, ...]:
    """Logits of positions [start, start + count) of each prompt."""
    flat = [prompt[start : start + count] for prompt, start, count in zip(prompts, starts, counts, strict=True)]
    tokens = torch.tensor([token for chunk in flat for token in chunk])
    batch = build_batch(starts, counts, [tuple(table) for table in tables], PAGE_TOKENS, torch.float32)
    _, positions = flat_positions(starts, counts)
    with torch.inference_mode():
        logits = model.forward(tokens, torch.from_numpy(positions), batch, cache, torch.arange(len(tokens)))
    return torch.split(logits, counts.tolist())


@pytest.mark.parametrize("name", list(SHAPES))
@pytest.mark.parametrize("layout", ["safetensors", "gguf"])
def test_logits_equal_transformers_in_any_schedule(name: str, layout: str, tmp_path: Path) -> None:
    if layout == "gguf" and "rope_parameters" in SHAPES[name]:
        pytest.skip("GGUF stores stretched positions another way; tested apart")
    model = save_tiny_llama(tmp_path / "hf", **SHAPES[name])
    path = tmp_path / "hf"
    if layout == "gguf":
        head_dim = model.config.head_dim
        path = write_tiny_gguf(model, tmp_path / "tiny.gguf", metadata={"attention.key_length": head_dim})
    random = np.random.default_rng(3)
    prompts = [random.integers(0, 512, length).tolist() for length in (90, 37, 1)]
    with torch.inference_mode():
        expected = [model(torch.tensor([prompt])).logits[0] for prompt in prompts]
    schedules = {
        "whole": [[90, 37, 1]],
        "chunked": [[17, 0, 0], [40, 30, 1], [33, 7, 0]],
        "mixed with decodes": [[60, 5, 1], [1, 31, 0], [28, 1, 0], [1, 0, 0]],
        "token by token": [[88, 20, 0], *[[0, 1, 0]] * 17, [1, 0, 0], [1, 0, 1]],
    }
    for schedule in schedules.values():
        for got, want in zip(all_logits(path, prompts, schedule), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-4)
    assert max(float(logits.std()) for logits in expected) > 1.0


def test_gguf_frequency_factors_stretch_positions(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path / "hf", rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0})
    linear = write_tiny_gguf(model, tmp_path / "linear.gguf", metadata={"rope.scaling.type": "none"})
    prompt = np.random.default_rng(3).integers(0, 512, 60).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0]
    unstretched = all_logits(linear, [prompt], [[60]])[0]
    assert float((unstretched - expected).abs().max()) > 0.1

    model.register_parameter("factors", torch.nn.Parameter(torch.full((8,), 4.0)))
    with_factors = write_tiny_gguf(model, tmp_path / "factors.gguf")
    torch.testing.assert_close(all_logits(with_factors, [prompt], [[60]])[0], expected, rtol=1e-4, atol=2e-4)
