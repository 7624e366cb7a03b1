"""Writes a Hugging Face checkpoint as GGUF, for loader tests: any tensor type the `gguf` package can quantize."""

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
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = {
    **LAYER_NAMES,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TOP_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
ARCHITECTURES = {"llama": "llama", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}


def write_tiny_gguf(
    model: Any, path: Path, kind: str = "F32", architecture: str | None = None, metadata: dict[str, Any] | None = None
) -> Path:
    """Write a transformers model of a native family to `path`; matrices as GGML type `kind`, vectors as F32.

    `metadata` replaces or adds keys below the architecture, e.g. `{"expert_count": 8}`.
    """
    config = model.config
    architecture = architecture or ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**_metadata(config), **(metadata or {})}.items():
        if isinstance(value, str):
            writer.add_string(f"{architecture}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{architecture}.{key}", value)
        else:
            writer.add_uint32(f"{architecture}.{key}", value)
    for name, values in _tensors(model):
        if kind == "F32" or values.ndim == 1:
            writer.add_tensor(name, np.ascontiguousarray(values))
        else:
            quantized = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, gguf.quantize(values, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": rope.get("full_attention", rope)["rope_theta"],
    }
    if config.model_type == "gemma3_text":
        values["attention.sliding_window"] = config.sliding_window
    if config.model_type == "qwen3_moe":
        values |= {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok}
        values["expert_feed_forward_length"] = config.moe_intermediate_size
    return values


def _tensors(model: Any) -> list[tuple[str, np.ndarray[Any, np.dtype[np.float32]]]]:
    config = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    found = []
    for name, parameter in model.named_parameters():
        values = parameter.detach()
        if name.endswith("experts.gate_up_proj"):
            layer = name.split(".")[2]
            gate, up = values.chunk(2, dim=1)
            found += [(f"blk.{layer}.ffn_gate_exps.weight", gate), (f"blk.{layer}.ffn_up_exps.weight", up)]
        elif name.endswith("experts.down_proj"):
            found.append((f"blk.{name.split('.')[2]}.ffn_down_exps.weight", values))
        elif config.model_type == "gemma3_text" and "norm" in name:
            found.append((gguf_name(name, GEMMA_NAMES), values + 1))
        else:
            found.append(
                (gguf_name(name), _interleaved(name, values, heads) if config.model_type == "llama" else values)
            )
    return [(name, values.contiguous().numpy()) for name, values in found]


def gguf_name(name: str, layer_names: dict[str, str] = LAYER_NAMES) -> str:
    """GGUF tensor name of a Hugging Face one; a parameter called "factors" stands for rotary frequency factors."""
    if name == "factors":
        return "rope_freqs.weight"
    base, kind = name.rsplit(".", 1)
    if base in TOP_NAMES:
        return f"{TOP_NAMES[base]}.{kind}"
    _, _, layer, part = base.split(".", 3)
    return f"blk.{layer}.{layer_names[part]}.{kind}"


def _interleaved(name: str, values: torch.Tensor, heads: dict[str, int]) -> torch.Tensor:
    for part, count in heads.items():
        if part in name:
            pairs = values.reshape(count, 2, -1, *values.shape[1:])
            return pairs.swapaxes(1, 2).reshape(values.shape).contiguous()
    return values
