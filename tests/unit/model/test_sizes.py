"""Sizes computed from a configuration against real allocations."""

from pathlib import Path
from typing import Any

import pytest
import torch

from forebay.engine.attention.paged import PagedCache
from forebay.engine.loader.checkpoint import kv_bytes_per_page, read_config, weight_bytes
from model_build import FAMILIES, save_tiny

SHAPES: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in FAMILIES),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("qwen3", {"attention_bias": True}),
    ("qwen3_moe", {"mlp_only_layers": [0], "decoder_sparse_step": 2}),
]


@pytest.mark.parametrize(("family", "changes"), SHAPES)
def test_weight_bytes_equal_the_real_parameter_count(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = save_tiny(family, tmp_path, **changes)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    config = read_config(tmp_path)
    assert weight_bytes(config, "fp32") == 4 * parameters
    assert weight_bytes(config, "bf16") == 2 * parameters
    table = config.vocab * config.hidden if config.tied_embeddings else 0
    assert weight_bytes(config, "bf16", is_quantized=True) == 2 * (parameters + table)


@pytest.mark.parametrize(("dtype", "torch_dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_page_bytes_equal_the_allocated_pools(dtype: str, torch_dtype: torch.dtype, tmp_path: Path) -> None:
    save_tiny("gemma3", tmp_path)
    config = read_config(tmp_path)
    groups = config.layer_groups
    assert [(group.name, group.window_tokens, group.layers) for group in groups] == [
        ("full", 0, (3,)),
        ("sliding", 16, (0, 1, 2)),
    ]
    cache = PagedCache(groups, (config.kv_heads, config.head_dim), (7, 5), 16, torch_dtype)
    full, sliding = (kv_bytes_per_page(config, dtype, 16, group) for group in groups)
    assert cache.size_bytes == 7 * full + 5 * sliding
    assert kv_bytes_per_page(config, dtype, 16) == full + sliding
