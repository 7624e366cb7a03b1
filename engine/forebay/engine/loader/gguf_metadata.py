"""Model configuration from the metadata of a GGUF file.

Keys are the ones of the GGUF specification (`<architecture>.block_count`, ...). Anything this engine would compute
wrongly (experts where none are known, unknown rope scaling) is refused by name here.
"""

from typing import Any, Final

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader.gguf_file import GgufHeader
from forebay.engine.loader.metadata import (
    FIELD,
    MAX_LAYERS,
    Experts,
    ModelConfig,
    RopeScaling,
    check_config,
    refuse_architecture,
)

ARCHITECTURES: Final = {"llama": "llama", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "gemma3": "gemma3_text"}
_GEMMA3_27B_LAYERS: Final = 62


def read_config(header: GgufHeader) -> ModelConfig:
    """Configuration in the header; `InvalidSpec` names a missing key, a bad value or an unsupported architecture."""
    named = str(required(header, "general.architecture"))
    architecture = ARCHITECTURES.get(named)
    if architecture is None:
        raise refuse_architecture(named, str(header.path))
    try:
        config = _config(header, architecture)
    except (TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError) as error:
        raise InvalidSpec(f"{header.path}: a metadata value has the wrong type: {error}", field=FIELD) from error
    return check_config(config, str(header.path))


def _config(header: GgufHeader, architecture: str) -> ModelConfig:
    has_experts = bool(_setting(header, "expert_count", 0))
    if has_experts != (architecture == "qwen3_moe"):
        raise refuse_architecture(f"{architecture} with{'' if has_experts else 'out'} experts", str(header.path))
    layers, hidden, heads = (
        _integer(header, key) for key in ("block_count", "embedding_length", "attention.head_count")
    )
    head_dim = int(_setting(header, "attention.key_length", hidden // max(heads, 1)))
    if int(_setting(header, "rope.dimension_count", head_dim)) != head_dim:
        raise InvalidSpec(f"{header.path}: partial rotary positions are not supported for {architecture}", field=FIELD)
    return ModelConfig(
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(_setting(header, "attention.head_count_kv", heads)),
        head_dim=head_dim,
        intermediate=_integer(header, "feed_forward_length"),
        vocab=_vocabulary_rows(header),
        rope_theta=float(_setting(header, "rope.freq_base", 10000.0)),
        rms_eps=_single(float(_setting(header, "attention.layer_norm_rms_epsilon"))),
        max_positions=_integer(header, "context_length"),
        tied_embeddings="output.weight" not in header.tensors,
        attention_bias="blk.0.attn_q.bias" in header.tensors,
        mlp_bias="blk.0.ffn_up.bias" in header.tensors,
        rope_scaling=_rope_scaling(header),
        experts=_experts(header) if has_experts else None,
        **(_gemma3(header, layers, hidden, heads, head_dim) if architecture == "gemma3_text" else {}),
    )


def _gemma3(header: GgufHeader, layers: int, hidden: int, heads: int, head_dim: int) -> dict[str, Any]:
    """What the family fixes and the file leaves out: five sliding layers before each full one, local base 10000."""
    pattern = int(_setting(header, "attention.sliding_window_pattern", 6))
    if pattern <= 0:
        raise InvalidSpec(f"{header.path}: impossible sliding window pattern {pattern}", field=FIELD)
    sliding = tuple(layer for layer in range(min(layers, MAX_LAYERS)) if (layer + 1) % pattern)
    # The 27B model scales by the width a head would have had, and no key of the file says so.
    scaled_width = hidden // max(heads, 1) if layers == _GEMMA3_27B_LAYERS else head_dim
    return {
        "local_rope_theta": float(_setting(header, "rope.freq_base_swa", 10000.0)),
        "sliding_layers": sliding,
        "window_tokens": _integer(header, "attention.sliding_window") if sliding else 0,
        "attention_scale": float(max(scaled_width, 1)) ** -0.5,
        "logit_softcap": float(_setting(header, "final_logit_softcapping", 0.0)),
    }


def _experts(header: GgufHeader) -> Experts:
    return Experts(
        count=_integer(header, "expert_count"),
        per_token=_integer(header, "expert_used_count"),
        intermediate=_integer(header, "expert_feed_forward_length"),
        normalise=True,
    )


def _rope_scaling(header: GgufHeader) -> RopeScaling | None:
    kind = str(_setting(header, "rope.scaling.type", "none"))
    if kind == "none":
        return None
    if kind != "linear":
        raise InvalidSpec(
            f"{header.path}: rope scaling {kind!r} is not supported; supported: none, linear, llama3", field=FIELD
        )
    return RopeScaling("linear", float(_setting(header, "rope.scaling.factor")))


def _vocabulary_rows(header: GgufHeader) -> int:
    entry = header.tensors.get("token_embd.weight")
    if entry is None:
        raise InvalidSpec(f"{header.path} has no tensor 'token_embd.weight'; is it a whole model?", field=FIELD)
    return entry.shape[0]


def _single(value: float) -> float:
    """A float32 read from the file as the short decimal it was written from: 9.99999975e-06 is 1e-05."""
    return float(f"{value:.7g}")


def _integer(header: GgufHeader, name: str) -> int:
    return int(_setting(header, name))


def _setting(header: GgufHeader, name: str, default: Any = None) -> Any:
    """A key below the file's architecture; without a default it must be there."""
    key = f"{header.metadata['general.architecture']}.{name}"
    return required(header, key) if default is None else header.metadata.get(key, default)


def required(header: GgufHeader, key: str) -> Any:
    """The value of a metadata key that must be there."""
    if key not in header.metadata:
        raise InvalidSpec(f"{header.path} has no metadata key {key!r}; convert the model again", field=FIELD)
    return header.metadata[key]
