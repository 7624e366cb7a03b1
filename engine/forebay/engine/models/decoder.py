"""One neutral description of a dense or mixture-of-experts decoder, filled by every native family.

Executors are built from it and know no family: the torch executor packs it for oneDNN, the C executor compiles it to a
tape. `DecoderShape` is plain numbers, enough to plan buffers; `DecoderSpec` adds the tensors, read layer by layer when
asked for, so that a load holds one packed copy and what is in flight. Every option is explicit: norm weights are
complete (Gemma's +1 is in them), scales are final numbers, absent parts are None.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from forebay.engine.loader.metadata import LayerGroup

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer is, without tensors.

    `rope` indexes `DecoderSpec.frequencies`; `group` indexes `DecoderShape.groups`, which says the window too.
    `intermediate` is the width of the feed-forward block, of each expert when `experts` is not 0.
    """

    rope: int
    group: int
    window_tokens: int
    intermediate: int
    experts: int = 0
    experts_per_token: int = 0


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Numbers of a whole decoder.

    `has_qk_norm`: queries and keys are normalised per head before rotary positions. `has_output_norms`: the results of
    attention and feed-forward are normalised before they join the residual (Gemma3). Softcaps of 0 mean none:
    cap * tanh(x / cap) otherwise. `embedding_scale` multiplies the looked-up row, 1 for most.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    rms_eps: float
    attention_scale: float
    attention_softcap: float
    logit_softcap: float
    embedding_scale: float
    activation: Activation
    has_qk_norm: bool
    has_output_norms: bool
    tied_head: bool
    layers: tuple[LayerShape, ...]
    groups: tuple[LayerGroup, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A projection: `weight` [out, in], `bias` [out] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class DenseBlock:
    """`gate_up` [2 * intermediate, hidden] is [gate | up] by rows, `down` [hidden, intermediate]."""

    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True)
class ExpertBlock:
    """Softmax over `router` [experts, hidden] logits in fp32, then the best `experts_per_token` of them.

    Their probabilities weigh the experts' outputs, divided by their sum when `normalise`.
    `gate_up` [experts, 2 * intermediate, hidden] is [gate | up] by rows; `down` [experts, hidden, intermediate].
    """

    router: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    experts_per_token: int
    normalise: bool


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Tensors of one layer, in the order they are applied.

    x += attention_out_norm(output(attention(rope(qk_norm(qkv(attention_norm(x)))))))
    x += mlp_out_norm(mlp(mlp_norm(x)))

    `qkv` [(heads + 2 * kv_heads) * head_dim, hidden] is [q | k | v] by rows; `query_norm` and `key_norm` [head_dim];
    the other norms [hidden].
    """

    attention_norm: torch.Tensor
    qkv: Matrix
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Matrix
    attention_out_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    mlp: DenseBlock | ExpertBlock
    mlp_out_norm: torch.Tensor | None


class DecoderTensors(Protocol):
    """Where the tensors come from. Every call reads anew and is safe from several threads.

    Tensors have the float format of the checkpoint (fp32 after dequantization): rounding to the engine's formats is
    the executor's. `InvalidSpec` names a tensor that is missing or has another shape.
    """

    def embedding(self) -> torch.Tensor:
        """[vocab, hidden]."""

    def layer(self, index: int) -> LayerSpec:
        """Everything of layer `index`."""

    def final_norm(self) -> torch.Tensor:
        """[hidden]."""

    def head(self) -> Matrix:
        """[vocab, hidden]; only asked for when the head is not tied to the embedding."""


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder: numbers, rotary frequencies (fp32 [head_dim / 2], radians a token, one for each rope id), tensors."""

    shape: DecoderShape
    frequencies: tuple[torch.Tensor, ...]
    tensors: DecoderTensors

    def layer(self, index: int) -> LayerSpec:
        """See `DecoderTensors.layer`."""
        return self.tensors.layer(index)
