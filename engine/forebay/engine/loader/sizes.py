"""Bytes that a model and its KV cache take, from the configuration alone.

Pure arithmetic used to size an engine before anything is allocated; `tests` hold it against the real allocations.
"""

from typing import Final

from forebay.contract.errors import Bug
from forebay.engine.loader.metadata import ModelConfig

ITEM_BYTES: Final = {"bf16": 2, "fp32": 4}


def kv_bytes_per_page(config: ModelConfig, dtype: str, page_tokens: int) -> int:
    """Bytes of one page over all layers, keys and values, stored as `dtype` ("bf16" or "fp32")."""
    return config.layers * 2 * page_tokens * config.kv_heads * config.head_dim * _item_bytes(dtype)


def weight_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of all weights held as `dtype`; a tied output head is counted once."""
    query, key_value = config.heads * config.head_dim, config.kv_heads * config.head_dim
    attention = config.hidden * (2 * query + 2 * key_value)
    layer = attention + 3 * config.hidden * config.intermediate + 2 * config.hidden
    if config.attention_bias:
        layer += query + 2 * key_value + config.hidden
    if config.mlp_bias:
        layer += 2 * config.intermediate + config.hidden
    embeddings = config.vocab * config.hidden * (1 if config.tied_embeddings else 2)
    return (config.layers * layer + embeddings + config.hidden) * _item_bytes(dtype)


def _item_bytes(dtype: str) -> int:
    if dtype not in ITEM_BYTES:
        raise Bug(f"unknown dtype {dtype!r}")
    return ITEM_BYTES[dtype]
