"""transformers models without a native module over our paged attention, and the ones that are refused."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor_drive import ExecutorDrive
from forebay.contract.errors import InvalidSpec
from forebay.engine.loader.checkpoint import kv_bytes_per_page, read_config, weight_bytes
from forebay.engine.models.executors import build_torch_executor
from forebay.engine.runner.compute import choose_compute, cpu_features
from forebay.engine.runner.executor import ExecutorSizes
from model_build import EXPERTS, PAGE_TOKENS, TINY

FEW_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32}
ROUTED = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    "num_key_value_heads": 4,
    "head_dim": None,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
SERVED: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "mistral": {"sliding_window": 20},
    "gemma2": {"sliding_window": 16},
    "gpt_oss": {**FEW_EXPERTS, "sliding_window": 16},
    "exaone4": {"sliding_window": 16, "sliding_window_pattern": 4},
    "glm4_moe": {**ROUTED, "first_k_dense_replace": 1, "use_qk_norm": True},
    "minimax_m2": {**FEW_EXPERTS, "rotary_dim": 8},
    "deepseek_v3": {**LATENT, **ROUTED, "first_k_dense_replace": 1},
}
RECURRENT = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "qwen3_next": ({**EXPERTS, **RECURRENT, "shared_expert_intermediate_size": 32}, "linear_attention, full_attention"),
    "nemotron_h": (
        {"num_hidden_layers": None, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]},
        "linear_attention, moe, full_attention, mlp",
    ),
    "deepseek_v32": (
        {**LATENT, **ROUTED, "index_topk": 16, "index_head_dim": 16, "index_n_heads": 16},
        "indexed_attention",
    ),
    "deepseek_v4": (
        {"layer_types": ["sliding_attention", "compressed_sparse_attention"] * 2, "num_key_value_heads": 1},
        "sliding_attention, compressed_sparse_attention",
    ),
    "minimax_m3_vl_text": (
        {"layer_types": ["full_attention", *["minimax_m3_sparse"] * 3]},
        "full_attention, minimax_m3_sparse",
    ),
    "mamba": ({}, "linear_attention"),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other crawl on a busy machine, and tiny models gain nothing from a second."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def save_generic(kind: str, folder: Path, **changes: Any) -> Any:
    """A random fp32 model of any type that transformers knows, also saved to `folder`."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - seconds of imports

    shape = {key: value for key, value in {**TINY, **changes}.items() if value is not None}
    torch.manual_seed(7)
    config = AutoConfig.for_model(kind, pad_token_id=0, bos_token_id=1, eos_token_id=2, **shape)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.15)
    model.save_pretrained(folder)
    return model


def drive(path: Path) -> ExecutorDrive:
    config = read_config(path)
    assert config.is_generic
    pages = tuple(24 for _ in config.layer_groups)
    sizes = ExecutorSizes(pages, PAGE_TOKENS, 8, 256, threads=1)
    executor = build_torch_executor(path, config, choose_compute("fp32", cpu_features()), sizes)
    return ExecutorDrive(executor, pages, PAGE_TOKENS, [group.window_tokens for group in config.layer_groups])


@pytest.mark.parametrize("kind", list(SERVED))
def test_logits_equal_transformers_in_mixed_batches(kind: str, tmp_path: Path) -> None:
    model = save_generic(kind, tmp_path, **SERVED[kind])
    random = np.random.default_rng(3)
    prompts = [random.integers(3, 512, length).tolist() for length in (60, 37, 1)]
    driven = drive(tmp_path)
    for row, prompt in enumerate(prompts):
        driven.add(row, prompt)
    found = driven.run([{0: 40, 1: 5, 2: 1}, {0: 1, 1: 31}, {0: 18, 1: 1}, {0: 1}])
    driven.add(3, prompts[0])
    driven.share_prefix(3, 0, 41)
    found |= driven.run([{3: 18}, {3: 1}])
    for row, prompt in enumerate([*prompts, prompts[0]]):
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(found[row], expected[-len(found[row]) :], rtol=1e-4, atol=3e-4)
        assert float(expected.std()) > 0.5
    config = read_config(tmp_path)
    assert weight_bytes(config, "fp32") >= 4 * sum(parameter.numel() for parameter in model.parameters())
    assert kv_bytes_per_page(config, "fp32", PAGE_TOKENS) == 4 * 2 * PAGE_TOKENS * 4 * config.kv_heads * config.head_dim


@pytest.mark.parametrize("kind", list(REFUSED))
def test_other_layer_types_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    from transformers import AutoConfig  # noqa: PLC0415 - seconds of imports

    changes, kinds = REFUSED[kind]
    shape = {key: value for key, value in {**TINY, **changes}.items() if value is not None}
    AutoConfig.for_model(kind, **shape).save_pretrained(tmp_path)
    with pytest.raises(InvalidSpec, match=f"{kind} has layer types {kinds}; the generic path runs") as caught:
        read_config(tmp_path)
    assert caught.value.field == "model"


def test_without_transformers_the_refusal_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else found(name))
    with pytest.raises(InvalidSpec, match=r"'qwen2' is not supported; .* pip install 'forebay\[generic\]'"):
        read_config(tmp_path)


def test_quantized_weights_and_length_dependent_positions_are_refused(tmp_path: Path) -> None:
    save_generic("qwen2", tmp_path)
    config = read_config(tmp_path)
    sizes = ExecutorSizes((4,), PAGE_TOKENS, 8, 256, threads=1)
    with pytest.raises(InvalidSpec, match="int8 is not supported for qwen2") as caught:
        build_torch_executor(tmp_path, config, choose_compute("int8", cpu_features()), sizes)
    assert caught.value.field == "dtype"
    document = json.loads((tmp_path / "config.json").read_text())
    document["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(InvalidSpec, match="'dynamic' depends on the longest sequence"):
        read_config(tmp_path)


def test_a_model_that_does_not_call_our_attention_is_refused(tmp_path: Path) -> None:
    """Bloom has plain layers and its own attention code."""
    save_generic("bloom", tmp_path, n_layer=2, n_head=4, num_hidden_layers=2)
    with pytest.raises(InvalidSpec, match="bloom"):
        drive(tmp_path)
