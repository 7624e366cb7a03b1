"""Writes a Hugging Face llama checkpoint as GGUF, for loader tests: any tensor type the `gguf` package can quantize."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TOP_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def write_tiny_gguf(
    model: Any, path: Path, kind: str = "F32", architecture: str = "llama", metadata: dict[str, Any] | None = None
) -> Path:
    """Write a transformers Llama to `path`; matrices as GGML type `kind`, vectors as F32.

    `metadata` replaces or adds keys below the architecture, e.g. `{"expert_count": 8}`.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    values: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        **(metadata or {}),
    }
    for key, value in values.items():
        if isinstance(value, str):
            writer.add_string(f"{architecture}.{key}", value)
        else:
            writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    writer.add_float32(f"{architecture}.rope.freq_base", config.rope_parameters["rope_theta"])
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        values_ = _interleaved(name, parameter.detach(), heads).numpy()
        if kind == "F32" or values_.ndim == 1:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(values_))
        else:
            quantized = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(gguf_name(name), gguf.quantize(values_, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    """GGUF tensor name of a Hugging Face one; a parameter called "factors" stands for rotary frequency factors."""
    if name == "factors":
        return "rope_freqs.weight"
    base, kind = name.rsplit(".", 1)
    if base in TOP_NAMES:
        return f"{TOP_NAMES[base]}.{kind}"
    _, _, layer, part = base.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[part]}.{kind}"


def _interleaved(name: str, values: torch.Tensor, heads: dict[str, int]) -> torch.Tensor:
    for part, count in heads.items():
        if part in name:
            pairs = values.reshape(count, 2, -1, *values.shape[1:])
            return pairs.swapaxes(1, 2).reshape(values.shape).contiguous()
    return values
