"""Logits of tiny random models of every native family against transformers, in every schedule a scheduler can make."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor_drive import ExecutorDrive
from forebay.engine.loader.checkpoint import read_config
from forebay.engine.models.executors import build_torch_executor
from forebay.engine.runner.compute import choose_compute, cpu_features
from forebay.engine.runner.executor import ExecutorSizes
from model_build import EXPERTS, PAGE_TOKENS, save_tiny
from tiny_gguf import write_tiny_gguf

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 5e4, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama multi-head": ("llama", {"num_key_value_heads": 4}),
    "llama one KV head": ("llama", {"num_key_value_heads": 1}),
    "llama groups of three": ("llama", {"hidden_size": 66, "num_attention_heads": 6, "head_dim": 10}),
    "llama odd head size": ("llama", {"head_dim": 22}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama llama3 positions": ("llama", {"rope_parameters": LLAMA3}),
    "llama linear positions": ("llama", {"rope_parameters": LINEAR}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3 with windows": ("qwen3", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    "qwen3_moe": ("qwen3_moe", {"norm_topk_prob": True}),
    "qwen3_moe with dense layers": ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [1]}),
    "qwen3_moe with windows": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 24}),
    "gemma3": ("gemma3", {}),
    "gemma3 by its pattern": ("gemma3", {"num_hidden_layers": 7, "layer_types": None}),
    "gemma3 of sliding layers only": ("gemma3", {"layer_types": None}),
    "gemma3 window of one page": ("gemma3", {"layer_types": ["sliding_attention", "full_attention"] * 2}),
    "gemma3 capped": ("gemma3", {"final_logit_softcapping": 3.0, "rope_parameters": GEMMA_ROPE, "sliding_window": 37}),
}
IN_GGUF = {
    "llama": {},
    "llama odd head size": {},
    "llama biased": {},
    "llama tied": {},
    "qwen3": {},
    "qwen3_moe": {},
    "gemma3 by its pattern": {"query_pre_attn_scalar": 16},
}
"""What GGUF can express, and what it fixes."""
SCHEDULES: dict[str, list[dict[int, int]]] = {
    "whole": [{0: 90, 1: 37, 2: 1}],
    "chunked": [{0: 17}, {0: 40, 1: 30, 2: 1}, {0: 33, 1: 7}],
    "mixed with decodes": [{0: 60, 1: 5, 2: 1}, {0: 1, 1: 31}, {0: 28, 1: 1}, {0: 1}],
    "token by token": [{0: 88, 1: 20}, *[{1: 1}] * 17, {0: 1}, {0: 1, 2: 1}],
}
PAGES = 24


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other crawl on a busy machine, and tiny models gain nothing from a second."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drive(path: Path) -> ExecutorDrive:
    config = read_config(path)
    pages = tuple(PAGES for _ in config.layer_groups)
    compute = choose_compute("fp32", cpu_features())
    executor = build_torch_executor(path, config, compute, ExecutorSizes(pages, PAGE_TOKENS, 8, 256, threads=1))
    return ExecutorDrive(executor, pages, PAGE_TOKENS, [group.window_tokens for group in config.layer_groups])


def prompts() -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(0, 512, length).tolist() for length in (90, 37, 1)]


def expected_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def assert_same(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=3e-4)


@pytest.mark.parametrize("name", list(SHAPES))
def test_logits_equal_transformers_in_any_schedule(name: str, tmp_path: Path) -> None:
    family, changes = SHAPES[name]
    model = save_tiny(family, tmp_path, **changes)
    check_schedules(tmp_path, model)


@pytest.mark.parametrize("name", list(IN_GGUF))
def test_a_gguf_file_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    family, changes = SHAPES[name]
    model = save_tiny(family, tmp_path / "hf", **{**changes, **IN_GGUF[name]})
    check_schedules(write_tiny_gguf(model, tmp_path / "tiny.gguf"), model)


def check_schedules(path: Path, model: Any) -> None:
    """Fail unless all positions of all prompts have transformers' logits in every schedule."""
    expected = [expected_logits(model, prompt) for prompt in prompts()]
    driven = drive(path)
    for schedule in SCHEDULES.values():
        for row, prompt in enumerate(prompts()):
            driven.add(row, prompt)
        found = driven.run(schedule)
        for row, want in enumerate(expected):
            assert_same(found[row], want)
            driven.remove(row)
    assert max(float(logits.std()) for logits in expected) > 0.9


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe", "gemma3"])
def test_reused_prefixes_give_the_same_logits(family: str, tmp_path: Path) -> None:
    model = save_tiny(family, tmp_path)
    driven = drive(tmp_path)
    prompt, other, _ = prompts()
    driven.add(0, prompt[:60] + other)
    driven.run([{0: 50}, {0: 47}])
    expected = expected_logits(model, prompt)
    for name, shared in ((1, 48), (2, 59), (3, 60)):
        driven.add(name, prompt)
        driven.share_prefix(name, 0, shared)
        found = driven.run([{name: len(prompt) - shared - 5}, *[{name: 1}] * 5])
        assert_same(found[name], expected[shared:])


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe", "gemma3"])
def test_a_preempted_sequence_resumes_on_other_pages_with_the_same_logits(family: str, tmp_path: Path) -> None:
    model = save_tiny(family, tmp_path)
    driven = drive(tmp_path)
    prompt, other, _ = prompts()
    expected = expected_logits(model, prompt)
    driven.add(0, prompt)
    driven.run([{0: 70}, {0: 1}])
    driven.remove(0)
    driven.add(1, other)
    driven.run([{1: 30}])
    driven.add(2, prompt)
    found = driven.run([{2: 71, 1: 1}, {2: 18, 1: 6}, {2: 1}])
    assert_same(found[2], expected)
    assert_same(found[1], expected_logits(model, other)[30:])


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe", "gemma3"])
def test_rejected_drafts_are_overwritten(family: str, tmp_path: Path) -> None:
    """Speculation writes positions and takes them back; the next step writes other tokens over them."""
    model = save_tiny(family, tmp_path)
    driven = drive(tmp_path)
    prompt, other, _ = prompts()
    expected, computed = expected_logits(model, prompt), 40
    driven.add(0, prompt)
    driven.add(1, other)
    driven.run([{0: computed, 1: 20}])
    for drafted, accepted in ((4, 0), (8, 3), (16, 15), (5, 5)):
        row = driven.sequences[0]
        kept = prompt[computed : computed + accepted + 1]
        row.tokens = prompt[: computed + accepted + 1] + other[: drafted - accepted]
        found = driven.run([{0: drafted + 1, 1: 1}])
        assert_same(found[0][: len(kept)], expected[computed : computed + len(kept)])
        computed += len(kept)
        row.tokens, row.computed = list(prompt), computed
    assert_same(driven.run([{0: 10}])[0], expected[computed : computed + 10])


def test_pages_behind_the_window_are_never_read(tmp_path: Path) -> None:
    """The drive points freed entries of a table to page 0: with other content there, logits would change."""
    model = save_tiny("gemma3", tmp_path)
    driven = drive(tmp_path)
    prompt = prompts()[0]
    driven.add(0, [1] * PAGE_TOKENS)
    driven.sequences[0].pages = [[0] for _ in driven.windows]
    driven.run([{0: PAGE_TOKENS}])
    driven.add(1, prompt)
    assert 16 in driven.windows
    assert_same(driven.run([{1: 50}, {1: 1}, {1: 39}])[1], expected_logits(model, prompt))


def test_gguf_frequency_factors_stretch_positions(tmp_path: Path) -> None:
    model = save_tiny("llama", tmp_path / "hf", rope_parameters=LINEAR)
    linear = write_tiny_gguf(model, tmp_path / "linear.gguf", metadata={"rope.scaling.type": "none"})
    prompt = prompts()[0]
    expected = expected_logits(model, prompt)
    assert float((_whole(linear, prompt) - expected).abs().max()) > 0.1
    model.register_parameter("factors", torch.nn.Parameter(torch.full((8,), 4.0)))
    assert_same(_whole(write_tiny_gguf(model, tmp_path / "factors.gguf"), prompt), expected)


def _whole(path: Path, prompt: list[int]) -> torch.Tensor:
    driven = drive(path)
    driven.add(0, prompt)
    return driven.run([{0: len(prompt)}])[0]


def test_experts_are_read_one_by_one_and_fused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file  # noqa: PLC0415 - beside its only use

    model = save_tiny("qwen3_moe", tmp_path, **EXPERTS)
    stored = load_file(tmp_path / "model.safetensors")
    assert any(".experts.3.gate_proj." in name for name in stored)
    prompt = prompts()[0]
    expected = _whole(tmp_path, prompt)
    fused = {name: tensor for name, tensor in stored.items() if ".experts." not in name}
    fused |= {name: tensor.detach() for name, tensor in model.named_parameters() if ".experts." in name}
    save_file({name: tensor.contiguous() for name, tensor in fused.items()}, tmp_path / "model.safetensors")
    assert torch.equal(_whole(tmp_path, prompt), expected)
