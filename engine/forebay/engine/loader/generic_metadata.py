"""Configuration of models without a native module, which transformers computes through our paged attention.

The gate is the set of layer types, never a support flag of the library: only full and sliding attention keep nothing
but keys and values per token. Recurrent, compressed and index-selected layers would be silently wrong or fail, so they
are refused by name. transformers and torch are imported only when a checkpoint needs them.
"""

import importlib.util
import math
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader.metadata import FIELD, ModelConfig, check_config, refuse_architecture

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_LENGTH_DEPENDENT_ROPE: Final = ("dynamic", "longrope")
"""Rotary kinds whose frequencies follow the longest sequence at hand: requests of a batch would change each other."""


def generic_config(folder: Path, architecture: str) -> ModelConfig:
    """Configuration for the generic path.

    `InvalidSpec` says what to install, what transformers lacks, or which layer types are in the way.
    """
    file = str(folder / "config.json")
    if importlib.util.find_spec("transformers") is None:
        hint = "; others run through transformers, which is not installed: pip install 'forebay[generic]'"
        raise refuse_architecture(architecture, file, hint)
    config = _transformers_config(folder, architecture, file)
    kinds = layer_kinds(config)
    _check_kinds(config, kinds, file)
    heads = int(config.num_attention_heads)
    is_latent = getattr(config, "kv_lora_rank", None) is not None
    sliding = tuple(layer for layer, kind in enumerate(kinds) if kind == _SLIDING)
    return check_config(
        ModelConfig(
            architecture=architecture,
            layers=len(kinds),
            hidden=int(config.hidden_size),
            heads=heads,
            # Latent attention is expanded to one key for each head before it is cached.
            kv_heads=heads if is_latent else int(getattr(config, "num_key_value_heads", None) or heads),
            head_dim=_head_dim(config, heads, is_latent=is_latent),
            # The rest is the library's business: these two only have to be in range.
            intermediate=int(config.hidden_size),
            rope_theta=1.0,
            vocab=int(config.vocab_size),
            rms_eps=0.0,
            max_positions=int(config.max_position_embeddings),
            tied_embeddings=bool(config.tie_word_embeddings),
            window_tokens=int(config.sliding_window) if sliding else 0,
            sliding_layers=sliding,
            parameters=_parameters(folder),
        ),
        file,
    )


def layer_kinds(config: Any) -> list[str]:
    """The type of every layer of a transformers configuration; configurations without a list have one kind only."""
    listed = getattr(config, "layer_types", None)
    if listed is not None:
        return [str(kind) for kind in listed]
    kind = _SLIDING if getattr(config, "sliding_window", None) else _FULL
    return [kind] * int(config.num_hidden_layers)


def _transformers_config(folder: Path, architecture: str, file: str) -> Any:
    import transformers  # noqa: PLC0415 - optional, and it brings torch into a process that may do without
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: PLC0415

    if architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        hint = f"; transformers {transformers.__version__} has no causal language model of this type either"
        raise refuse_architecture(architecture, file, hint)
    try:
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise InvalidSpec(f"{file}: transformers cannot read it: {error}", field=FIELD) from error


def _check_kinds(config: Any, kinds: list[str], file: str) -> None:
    found = list(dict.fromkeys(kinds))
    if not set(found) <= {_FULL, _SLIDING}:
        raise InvalidSpec(
            f"{file}: {config.model_type} has layer types {', '.join(found)}; "
            f"the generic path runs {_FULL} and {_SLIDING} only, and there is no native module",
            field=FIELD,
        )
    parameters = getattr(config, "rope_parameters", None) or {}
    ropes = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    kept = [rope["rope_type"] for rope in ropes if rope.get("rope_type") in _LENGTH_DEPENDENT_ROPE]
    if kept:
        raise InvalidSpec(f"{file}: rope type {kept[0]!r} depends on the longest sequence of a batch", field=FIELD)


def _head_dim(config: Any, heads: int, *, is_latent: bool) -> int:
    if is_latent:
        return int(config.qk_nope_head_dim) + int(config.qk_rope_head_dim)
    return int(getattr(config, "head_dim", None) or int(config.hidden_size) // max(heads, 1))


def _parameters(folder: Path) -> int:
    """Elements of all tensors in the folder's safetensors files."""
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="np") as tensors:
                total += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118 - not a dict
        except (SafetensorError, OSError) as error:
            raise InvalidSpec(f"{file} is truncated or corrupt ({error}); fetch it again", field=FIELD) from error
    if not total:
        raise InvalidSpec(f"{folder} has no .safetensors files; convert the weights to safetensors", field=FIELD)
    return total
