"""Bytes that a model and its KV cache take, from the configuration alone.

Pure arithmetic used to size an engine before anything is allocated; `tests` hold it against the real allocations.
"""

from typing import Final

from forebay.contract.errors import Bug
from forebay.engine.loader.metadata import LayerGroup, ModelConfig

ITEM_BYTES: Final = {"bf16": 2, "fp32": 4}


def kv_bytes_per_page(config: ModelConfig, dtype: str, page_tokens: int, group: LayerGroup | None = None) -> int:
    """Bytes of one page of `group` over its layers, keys and values, stored as `dtype` ("bf16" or "fp32").

    Without a group: one page of every group.
    """
    layers = config.layers if group is None else len(group.layers)
    return layers * 2 * page_tokens * config.kv_heads * config.head_dim * _item_bytes(dtype)


def weight_bytes(config: ModelConfig, dtype: str, *, is_quantized: bool = False) -> int:
    """Bytes of all weights held as `dtype`; a tied output head is counted once unless it `is_quantized` by itself."""
    if config.is_generic:
        return config.parameters * _item_bytes(dtype)
    layers = sum(_attention(config) + _feed_forward(config, layer) for layer in range(config.layers))
    embeddings = config.vocab * config.hidden * (1 if config.tied_embeddings and not is_quantized else 2)
    return (layers + embeddings + config.hidden) * _item_bytes(dtype)


def _attention(config: ModelConfig) -> int:
    """Elements of one layer's attention and norms."""
    query, key_value = config.heads * config.head_dim, config.kv_heads * config.head_dim
    elements = config.hidden * (2 * query + 2 * key_value) + 2 * config.hidden
    if config.attention_bias:
        elements += query + 2 * key_value + config.hidden
    if config.has_qk_norm:
        elements += 2 * config.head_dim
    if config.has_output_norms:
        elements += 2 * config.hidden
    return elements


def _feed_forward(config: ModelConfig, layer: int) -> int:
    experts = config.experts
    if experts is not None and layer not in experts.dense_layers:
        return experts.count * config.hidden * (1 + 3 * experts.intermediate)
    elements = 3 * config.hidden * config.intermediate
    return elements + (2 * config.intermediate + config.hidden if config.mlp_bias else 0)


def _item_bytes(dtype: str) -> int:
    if dtype not in ITEM_BYTES:
        raise Bug(f"unknown dtype {dtype!r}")
    return ITEM_BYTES[dtype]
