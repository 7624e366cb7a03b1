"""Values that describe a checkpoint: model configuration and tokenizer source.

They are the same for every file layout, so that nothing behind the loader knows where a model came from. The set of
supported architectures lives here because the metadata readers refuse the rest by name before any tensor is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forebay.contract.errors import InvalidSpec

FIELD: Final = "model"
SUPPORTED_ARCHITECTURES: Final = ("llama",)


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Stretching of rotary frequencies.

    kind "linear" divides every frequency by `factor`; kind "llama3" does so for wavelengths above
    original_positions / low_frequency_factor and blends down to original_positions / high_frequency_factor.
    """

    kind: str
    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers whose KV pages live together: `window_tokens` positions are seen by each token, 0 for all of them.

    A window counts the token itself, so position p sees (p - window_tokens, p]. `name` is "full" or "sliding".
    """

    name: str
    window_tokens: int
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and constants of a decoder model; widths in elements, `max_positions` in tokens."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    rope_theta: float
    rms_eps: float
    max_positions: int
    tied_embeddings: bool
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Everything needed to turn text into tokens and back.

    `tokenizer_json` is a document of the `tokenizers` library; encoding with special tokens adds the beginning-of-text
    token when the model wants one (`add_bos`). `special_tokens` maps the text of every control token to its id.
    """

    tokenizer_json: str
    chat_template: str | None
    bos_id: int | None
    eos_ids: tuple[int, ...]
    special_tokens: Mapping[str, int]
    bos_token: str | None
    eos_token: str | None
    add_bos: bool


def check_config(config: ModelConfig, where: str) -> ModelConfig:
    """`config` itself when its numbers fit together, else `InvalidSpec` naming the number; `where` is the file."""
    for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "max_positions"):
        if getattr(config, name) <= 0:
            raise InvalidSpec(f"{where}: {name} is {getattr(config, name)}, must be positive", field=FIELD)
    if config.heads % config.kv_heads:
        raise InvalidSpec(
            f"{where}: {config.heads} query heads are not a multiple of {config.kv_heads} KV heads", field=FIELD
        )
    if config.head_dim % 2:
        raise InvalidSpec(f"{where}: head size {config.head_dim} is odd; rotary positions need pairs", field=FIELD)
    return config


def refuse_architecture(name: str, where: str) -> InvalidSpec:
    """The error for an architecture that has no native module."""
    supported = ", ".join(SUPPORTED_ARCHITECTURES)
    return InvalidSpec(f"{where}: architecture {name!r} is not supported; supported: {supported}", field=FIELD)
