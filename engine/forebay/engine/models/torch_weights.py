"""A decoder's tensors as the torch executor multiplies them: rounded to the engine's formats, packed for oneDNN.

Layers are read and packed on several threads, the embedding beside them; the plain form of a matrix is dropped as soon
as it is packed. Norms and routers keep the precision of `values` and are never quantized.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch.nn import functional

from forebay.engine.layers.linear import Linear, PlainLinear, linear
from forebay.engine.layers.quantize import head_weights, rounded
from forebay.engine.models.decoder import Activation, DecoderSpec, DenseBlock, ExpertBlock, LayerSpec, Matrix
from forebay.engine.runner.compute import Compute
from forebay.kernels.gelu_mul import gelu_mul
from forebay.kernels.silu_mul import silu_mul

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_GATED = {"silu": silu_mul, "gelu_tanh": gelu_mul}


class Rounding:
    """Casts of one engine: what a tensor is worth after storage, in the dtype it is multiplied in."""

    def __init__(self, compute: Compute) -> None:
        self._values = TORCH_DTYPES[compute.values]
        self._weights = compute.weights
        self.is_quantized = compute.weights != compute.values
        self.dtype = TORCH_DTYPES[compute.matmul]

    def plain(self, tensor: torch.Tensor) -> torch.Tensor:
        """A norm, bias or router."""
        return tensor.to(self._values).to(self.dtype)

    def table(self, tensor: torch.Tensor) -> torch.Tensor:
        """The embedding that is looked up: never quantized, bf16 unless everything is fp32."""
        held = torch.float32 if self._weights == "fp32" else torch.bfloat16
        return tensor.to(held).to(self.dtype)

    def matrix(self, tensor: torch.Tensor, *, is_head: bool = False) -> torch.Tensor:
        """A matrix [..., out, in] of the layers, or the head."""
        if not self.is_quantized:
            return self.plain(tensor)
        weights = head_weights(self._weights) if is_head else self._weights
        return rounded(tensor.reshape(-1, tensor.shape[-1]), weights).view(tensor.shape).to(self.dtype)


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """A gated feed-forward block."""

    gate_up: Linear
    down: Linear
    activation: Activation

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """[n, hidden] for [n, hidden]."""
        return self.down.apply(_GATED[self.activation](self.gate_up.apply(x)))


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Experts behind a router; each sees only the tokens that chose it."""

    router: torch.Tensor
    experts: tuple[DenseWeights, ...]
    per_token: int
    normalise: bool

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """[n, hidden] for [n, hidden]."""
        probabilities = functional.linear(x, self.router).float().softmax(dim=-1)
        chosen, experts = probabilities.topk(self.per_token, dim=-1)
        if self.normalise:
            chosen = chosen / chosen.sum(dim=-1, keepdim=True)
        out = torch.zeros(x.shape, dtype=torch.float32)
        for expert in sorted(set(experts.flatten().tolist())):
            tokens, place = torch.where(experts == expert)
            out.index_add_(0, tokens, self.experts[expert].apply(x[tokens]).float() * chosen[tokens, place, None])
        return out.to(x.dtype)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; see `LayerSpec`."""

    attention_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Linear
    attention_out_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    mlp: DenseWeights | ExpertWeights
    mlp_out_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A whole model in one dtype; a tied `head` multiplies by `embedding` itself unless it is quantized."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: Linear


def pack_decoder(spec: DecoderSpec, rounding: Rounding, threads: int) -> DecoderWeights:
    """Read and pack every tensor of `spec`, `threads` layers at a time."""
    tensors, activation = spec.tensors, spec.shape.activation
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="load") as pool:
        # The embedding is the largest tensor by far: start it first.
        ends = pool.submit(_ends, spec, rounding)
        layers = tuple(
            pool.map(lambda index: _layer(spec.layer(index), rounding, activation), range(len(spec.shape.layers)))
        )
        embedding, head = ends.result()
    return DecoderWeights(embedding, layers, rounding.plain(tensors.final_norm()), head)


def _ends(spec: DecoderSpec, rounding: Rounding) -> tuple[torch.Tensor, Linear]:
    """Embedding table and head."""
    plain = spec.tensors.embedding()
    table = rounding.table(plain)
    if not spec.shape.tied_head:
        return table, _projection(spec.tensors.head(), rounding, is_head=True)
    if rounding.is_quantized:
        return table, _projection(Matrix(plain), rounding, is_head=True)
    # A tied head is not packed: the lookup needs the plain layout, and a second copy would cost its memory again.
    return table, PlainLinear(table)


def _layer(layer: LayerSpec, rounding: Rounding, activation: Activation) -> LayerWeights:
    def norm(weight: torch.Tensor | None) -> torch.Tensor | None:
        return None if weight is None else rounding.plain(weight)

    return LayerWeights(
        attention_norm=rounding.plain(layer.attention_norm),
        qkv=_projection(layer.qkv, rounding),
        query_norm=norm(layer.query_norm),
        key_norm=norm(layer.key_norm),
        output=_projection(layer.output, rounding),
        attention_out_norm=norm(layer.attention_out_norm),
        mlp_norm=rounding.plain(layer.mlp_norm),
        mlp=_feed_forward(layer.mlp, rounding, activation),
        mlp_out_norm=norm(layer.mlp_out_norm),
    )


def _feed_forward(
    block: DenseBlock | ExpertBlock, rounding: Rounding, activation: Activation
) -> DenseWeights | ExpertWeights:
    if isinstance(block, DenseBlock):
        return DenseWeights(_projection(block.gate_up, rounding), _projection(block.down, rounding), activation)
    experts = tuple(
        DenseWeights(_projection(Matrix(gate_up), rounding), _projection(Matrix(down), rounding), activation)
        for gate_up, down in zip(block.gate_up, block.down, strict=True)
    )
    return ExpertWeights(rounding.plain(block.router), experts, block.experts_per_token, block.normalise)


def _projection(matrix: Matrix, rounding: Rounding, *, is_head: bool = False) -> Linear:
    bias = None if matrix.bias is None else rounding.plain(matrix.bias)
    return linear(rounding.matrix(matrix.weight, is_head=is_head), bias)
