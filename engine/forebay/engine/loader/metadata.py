"""Values that describe a checkpoint: model configuration and tokenizer source.

They are the same for every file layout, so that nothing behind the loader knows where a model came from. The set of
native architectures lives here because the metadata readers decide before any tensor is read, and without torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forebay.contract.errors import InvalidSpec

FIELD: Final = "model"
MAX_LAYERS: Final = 4096
NATIVE_ARCHITECTURES: Final = ("llama", "qwen3", "qwen3_moe", "gemma3_text")
"""Model types of Hugging Face configurations; GGUF names are mapped to them."""


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
class Experts:
    """Mixture of experts: `count` experts of width `intermediate`, `per_token` used; `dense_layers` have none.

    The weights of the chosen experts are divided by their sum when `normalise`.
    """

    count: int
    per_token: int
    intermediate: int
    normalise: bool
    dense_layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a sentence vector is made from the final hidden states: "last" or "mean" token, unit length or not."""

    kind: str
    normalise: bool


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and constants of a decoder model; widths in elements, `max_positions` and `window_tokens` in tokens.

    `sliding_layers` see `window_tokens` positions and turn by `local_rope_theta` when that is not 0.
    `attention_scale` 0 means 1 / sqrt(head_dim). `parameters` is 0 for native architectures, whose size follows from
    the shape; otherwise the generic path runs the model and `value_dim` may be narrower than `head_dim`.
    """

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
    local_rope_theta: float = 0.0
    window_tokens: int = 0
    sliding_layers: tuple[int, ...] = ()
    experts: Experts | None = None
    attention_scale: float = 0.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    parameters: int = 0

    @property
    def is_generic(self) -> bool:
        """Whether transformers computes the model instead of a native module."""
        return self.architecture not in NATIVE_ARCHITECTURES

    @property
    def has_qk_norm(self) -> bool:
        """Whether queries and keys are normalised per head before rotary positions."""
        return self.architecture != "llama"

    @property
    def has_output_norms(self) -> bool:
        """Whether results of attention and feed-forward are normalised before they join the residual."""
        return self.architecture == "gemma3_text"

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """Layers by the KV pages they keep, full attention first; one group for most models."""
        sliding = set(self.sliding_layers)
        full = tuple(layer for layer in range(self.layers) if layer not in sliding)
        groups = (LayerGroup("full", 0, full), LayerGroup("sliding", self.window_tokens, self.sliding_layers))
        return tuple(group for group in groups if group.layers)


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


_MAX_WIDTH: Final = 1 << 24


def check_config(config: ModelConfig, where: str) -> ModelConfig:
    """`config` itself when its numbers fit together, else `InvalidSpec` naming the number; `where` is the file."""
    for name, size in _sizes(config).items():
        if size <= 0:
            raise _bad(where, f"{name} is {size}, must be positive")
        if size > (MAX_LAYERS if name == "layers" else _MAX_WIDTH):
            raise _bad(where, f"{name} is {size}, which is more than any model has")
    if config.heads % config.kv_heads:
        raise _bad(where, f"{config.heads} query heads are not a multiple of {config.kv_heads} KV heads")
    if config.head_dim % 2:
        raise _bad(where, f"head size {config.head_dim} is odd; rotary positions need pairs")
    experts = config.experts
    if experts is not None and experts.per_token > experts.count:
        raise _bad(where, f"{experts.per_token} of {experts.count} experts cannot be used at once")
    _check_constants(config, where)
    return config


def _check_constants(config: ModelConfig, where: str) -> None:
    if not (config.rope_theta > 0 and config.rms_eps >= 0 and config.attention_scale >= 0):
        raise _bad(where, f"rope theta {config.rope_theta}, epsilon {config.rms_eps} or the scale is out of range")


def _sizes(config: ModelConfig) -> dict[str, int]:
    """Everything that counts something, by name."""
    names = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "max_positions")
    sizes: dict[str, int] = {name: getattr(config, name) for name in names}
    if config.experts is not None:
        sizes |= {"experts": config.experts.count, "experts per token": config.experts.per_token}
        sizes |= {"width of an expert": config.experts.intermediate}
    if config.sliding_layers:
        sizes |= {"window": config.window_tokens}
    return sizes


def _bad(where: str, why: str) -> InvalidSpec:
    return InvalidSpec(f"{where}: {why}", field=FIELD)


def refuse_architecture(name: str, where: str, hint: str = "") -> InvalidSpec:
    """The error for an architecture that has no native module."""
    native = ", ".join(NATIVE_ARCHITECTURES)
    return _bad(where, f"architecture {name!r} is not supported; supported: {native}{hint}")
