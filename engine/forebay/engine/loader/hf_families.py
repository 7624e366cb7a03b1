"""Model configuration of the native families from a Hugging Face config.json document.

Defaults are the ones of transformers' configuration classes, because `save_pretrained` and hub files leave values out
that equal them. Values that this engine would compute wrongly are refused by name. Called by `hf_metadata` only.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader.metadata import FIELD, MAX_LAYERS, Experts, ModelConfig, RopeScaling

Document = Mapping[str, Any]
_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"


def native_config(document: Document, where: str) -> ModelConfig:
    """Configuration of a native architecture; raises KeyError, TypeError or ValueError for a broken document."""
    return FAMILIES[str(document["model_type"])](document, where)


def _llama(document: Document, where: str) -> ModelConfig:
    _check_activation(document, where, "hidden_act", "silu")
    hidden, heads = int(document["hidden_size"]), int(document["num_attention_heads"])
    return ModelConfig(
        head_dim=int(document.get("head_dim") or hidden // max(heads, 1)),
        rms_eps=float(document.get("rms_norm_eps", 1e-6)),
        max_positions=int(document.get("max_position_embeddings", 2048)),
        tied_embeddings=bool(document.get("tie_word_embeddings", False)),
        mlp_bias=bool(document.get("mlp_bias", False)),
        rope_theta=_theta(_rope(document), document, 10000.0),
        rope_scaling=_scaling(_rope(document), where),
        **_common(document),
    )


def _qwen3(document: Document, where: str) -> ModelConfig:
    _check_activation(document, where, "hidden_act", "silu")
    first_sliding = int(document.get("max_window_layers", 28)) if document.get("use_sliding_window") else None
    return ModelConfig(
        head_dim=int(document.get("head_dim") or 128),
        rms_eps=float(document.get("rms_norm_eps", 1e-6)),
        max_positions=int(document.get("max_position_embeddings", 32768)),
        tied_embeddings=bool(document.get("tie_word_embeddings", False)),
        rope_theta=_theta(_rope(document), document, 10000.0),
        rope_scaling=_scaling(_rope(document), where),
        **_windows(document, where, lambda layer: first_sliding is not None and layer >= first_sliding),
        **_common(document),
    )


def _qwen3_moe(document: Document, where: str) -> ModelConfig:
    _check_activation(document, where, "hidden_act", "silu")
    hidden, heads = int(document["hidden_size"]), int(document["num_attention_heads"])
    step, listed = int(document.get("decoder_sparse_step", 1)), set(document.get("mlp_only_layers") or ())
    if step <= 0:
        raise InvalidSpec(f"{where}: decoder_sparse_step is {step}, must be positive", field=FIELD)
    dense = tuple(layer for layer in _layers(document) if layer in listed or (layer + 1) % step)
    return ModelConfig(
        head_dim=int(document.get("head_dim") or hidden // max(heads, 1)),
        rms_eps=float(document.get("rms_norm_eps", 1e-6)),
        max_positions=int(document.get("max_position_embeddings", 32768)),
        tied_embeddings=bool(document.get("tie_word_embeddings", False)),
        rope_theta=_theta(_rope(document), document, 10000.0),
        rope_scaling=_scaling(_rope(document), where),
        experts=Experts(
            count=int(document.get("num_experts", document.get("num_local_experts", 128))),
            per_token=int(document.get("num_experts_per_tok", 8)),
            intermediate=int(document.get("moe_intermediate_size", 768)),
            normalise=bool(document.get("norm_topk_prob", False)),
            dense_layers=dense,
        ),
        **_windows(document, where, lambda _: bool(document.get("use_sliding_window"))),
        **_common(document),
    )


def _gemma3(document: Document, where: str) -> ModelConfig:
    _check_activation(document, where, "hidden_activation", "gelu_pytorch_tanh")
    if document.get("use_bidirectional_attention"):
        raise InvalidSpec(f"{where}: use_bidirectional_attention is not supported; it is an encoder", field=FIELD)
    pattern = int(document.get("sliding_window_pattern", 6))
    rope = _rope(document)
    # Newer files hold one set for each kind of layer, older ones a second base frequency for the sliding layers.
    is_nested = _FULL in rope or _SLIDING in rope
    full, local = (rope.get(_FULL) or {}, rope.get(_SLIDING) or {}) if is_nested else (rope, {})
    if local.get("rope_type", "default") != "default":
        raise InvalidSpec(f"{where}: rope type {local['rope_type']!r} of sliding layers is not supported", field=FIELD)
    return ModelConfig(
        head_dim=int(document.get("head_dim") or 256),
        rms_eps=float(document.get("rms_norm_eps", 1e-6)),
        max_positions=int(document.get("max_position_embeddings", 131_072)),
        tied_embeddings=bool(document.get("tie_word_embeddings", True)),
        rope_theta=_theta(full, document, 1_000_000.0),
        rope_scaling=_scaling(full, where),
        local_rope_theta=_theta(local, {"rope_theta": document.get("rope_local_base_freq", 10000.0)}, 10000.0),
        attention_scale=float(document.get("query_pre_attn_scalar", 256)) ** -0.5,
        attention_softcap=float(document.get("attn_logit_softcapping") or 0.0),
        logit_softcap=float(document.get("final_logit_softcapping") or 0.0),
        **_windows(document, where, lambda layer: pattern > 0 and (layer + 1) % pattern > 0),
        **_common(document),
    )


FAMILIES: Final[Mapping[str, Callable[[Document, str], ModelConfig]]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma3_text": _gemma3,
}


def _common(document: Document) -> dict[str, Any]:
    heads = int(document["num_attention_heads"])
    return {
        "architecture": str(document["model_type"]),
        "layers": int(document["num_hidden_layers"]),
        "hidden": int(document["hidden_size"]),
        "heads": heads,
        "kv_heads": int(document.get("num_key_value_heads") or heads),
        "intermediate": int(document["intermediate_size"]),
        "vocab": int(document["vocab_size"]),
        "attention_bias": bool(document.get("attention_bias", False)),
    }


def _layers(document: Document) -> range:
    """Indices of the layers, of no more than a model can have: `check_config` refuses the number afterwards."""
    return range(min(int(document["num_hidden_layers"]), MAX_LAYERS))


def _check_activation(document: Document, where: str, key: str, expected: str) -> None:
    found = document.get(key) or expected
    if found != expected:
        raise InvalidSpec(f"{where}: {key} {found!r} is not supported; supported: {expected}", field=FIELD)


def _windows(document: Document, where: str, is_sliding: Callable[[int], bool]) -> dict[str, Any]:
    """Which layers slide: `layer_types` when the file lists them, else what the family's rule says."""
    layers = _layers(document)
    kinds = document.get("layer_types") or [_SLIDING if is_sliding(layer) else _FULL for layer in layers]
    found = {str(kind) for kind in kinds}
    if found - {_FULL, _SLIDING} or len(kinds) != len(layers):
        raise InvalidSpec(
            f"{where}: layer_types are {', '.join(sorted(found))} for {len(kinds)} of {len(layers)} layers; "
            f"supported: {_FULL}, {_SLIDING}",
            field=FIELD,
        )
    sliding = tuple(layer for layer, kind in enumerate(kinds) if kind == _SLIDING)
    return {"sliding_layers": sliding, "window_tokens": int(document.get("sliding_window") or 4096) if sliding else 0}


def _rope(document: Document) -> Document:
    parameters: Document = document.get("rope_parameters") or document.get("rope_scaling") or {}
    return parameters


def _theta(rope: Document, document: Document, default: float) -> float:
    return float(rope.get("rope_theta", document.get("rope_theta", default)))


def _scaling(rope: Document, where: str) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if float(rope.get("partial_rotary_factor") or 1.0) != 1.0:
        raise InvalidSpec(f"{where}: partial rotary positions are not supported here", field=FIELD)
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", float(rope["factor"]))
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            float(rope["factor"]),
            float(rope["low_freq_factor"]),
            float(rope["high_freq_factor"]),
            int(rope["original_max_position_embeddings"]),
        )
    raise InvalidSpec(f"{where}: rope type {kind!r} is not supported; supported: default, linear, llama3", field=FIELD)
