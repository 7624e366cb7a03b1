"""From a decoder's description to the ops of a tape.

Layers are read, packed and turned into ops one after the other, so a load holds the packed model and one plain layer a
loading thread. The residual stream is fp32; a linear layer adds to it in its epilogue unless the family normalises the
result first.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import torch

from forebay.engine.cpu.buffers import Buffers
from forebay.engine.cpu.pack import KINDS, Packer
from forebay.engine.cpu.pools import KvPools
from forebay.engine.layers.quantize import head_weights
from forebay.engine.models.decoder import DecoderSpec, ExpertBlock, LayerSpec, Matrix
from forebay.engine.runner.compute import Compute
from forebay.kernels.cpu import (
    SAMPLED,
    Activation,
    GateFunction,
    HeadNorm,
    NumberKind,
    Op,
    PackedLinear,
    Rope,
    activation_kind,
    attention,
    combine,
    convert,
    embed,
    gate,
    gather,
    linear,
    norm,
    norm_add,
    rope_kv,
    route,
    sorted_gather,
)

_GATES: Final = {"silu": GateFunction.SILU, "gelu_tanh": GateFunction.GELU_TANH}


@dataclass(frozen=True, slots=True)
class Ends:
    """What comes before and after the layers: `embedding` [vocab, hidden] plain, the packed head, the final norm."""

    embedding: torch.Tensor
    head: PackedLinear
    final_norm: torch.Tensor


class DecoderCompiler:
    """Compiles the layers of one decoder over shared buffers and pools."""

    def __init__(self, spec: DecoderSpec, compute: Compute, buffers: Buffers, pools: KvPools, positions: int) -> None:
        self._spec = spec
        self._shape = spec.shape
        self._packer = Packer(compute)
        self._need = activation_kind(KINDS[compute.weights]).allocate
        self._buffers = buffers
        self._pools = pools
        self._ropes = tuple(_rope(frequencies, positions) for frequencies in spec.frequencies)

    def layers(self, threads: int) -> list[Op]:
        """Ops of all layers in order; `threads` layers are read and packed at a time."""
        with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="load") as pool:
            compiled = list(pool.map(self._layer, range(len(self._shape.layers))))
        return [op for ops in compiled for op in ops]

    def ends(self) -> Ends:
        """Embedding, head and final norm, read and packed."""
        tensors, packer = self._spec.tensors, self._packer
        plain = tensors.embedding()
        weights = head_weights(packer.compute.weights)
        if self._shape.tied_head:
            head = packer.matrix(Matrix(plain), weights)
        else:
            head = packer.matrix(tensors.head(), weights)
        held = torch.float32 if weights == "fp32" else torch.bfloat16
        return Ends(plain.to(held).contiguous(), head, packer.vector(tensors.final_norm()))

    def lookup(self, ends: Ends) -> Op:
        """Starts the residual stream from the step's tokens."""
        return embed(ends.embedding, self._buffers.residual, self._shape.embedding_scale)

    def last_rows(self, ends: Ends, out: Activation) -> list[Op]:
        """The final norm of the step's sampled rows, as `out`."""
        shape = self._shape
        last = self._buffers.rows("last", shape.hidden)
        return [gather(self._buffers.residual, last), norm(last, ends.final_norm, shape.rms_eps, out, SAMPLED)]

    def _layer(self, index: int) -> list[Op]:
        layer = self._spec.layer(index)
        return [*self._attention(index, layer), *self._feed_forward(index, layer)]

    def _attention(self, index: int, layer: LayerSpec) -> list[Op]:
        shape, buffers, packer = self._shape, self._buffers, self._packer
        place, cache = shape.layers[index], self._pools.layer(index)
        heads = None
        if layer.query_norm is not None and layer.key_norm is not None:
            heads = HeadNorm(packer.vector(layer.query_norm), packer.vector(layer.key_norm), shape.rms_eps)
        hidden = buffers.activation("normed", self._need, shape.hidden)
        mixed = buffers.activation("mixed", self._need, shape.heads * shape.head_dim)
        return [
            norm(buffers.residual, packer.vector(layer.attention_norm), shape.rms_eps, hidden),
            linear(hidden, packer.matrix(layer.qkv), buffers.qkv),
            rope_kv(buffers.qkv, cache, self._ropes[place.rope], shape.attention_scale, heads),
            attention(buffers.qkv, buffers.mixed, cache, place.window_tokens, shape.attention_softcap),
            convert(buffers.mixed, mixed),
            *self._join(mixed, packer.matrix(layer.output), layer.attention_out_norm),
        ]

    def _feed_forward(self, index: int, layer: LayerSpec) -> list[Op]:
        shape, buffers, packer = self._shape, self._buffers, self._packer
        if isinstance(layer.mlp, ExpertBlock):
            return self._experts(index, layer, layer.mlp)
        width = shape.layers[index].intermediate
        hidden = buffers.activation("normed", self._need, shape.hidden)
        gated = buffers.activation("gated", self._need, width)
        gate_up = buffers.rows("gate_up", 2 * width)
        return [
            norm(buffers.residual, packer.vector(layer.mlp_norm), shape.rms_eps, hidden),
            linear(hidden, packer.matrix(layer.mlp.gate_up), gate_up),
            gate(gate_up, gated, _GATES[shape.activation]),
            *self._join(gated, packer.matrix(layer.mlp.down), layer.mlp_out_norm),
        ]

    def _experts(self, index: int, layer: LayerSpec, block: ExpertBlock) -> list[Op]:
        """Router in fp32 on unrounded rows; experts on rows sorted by expert, `experts_per_token` of them a token."""
        shape, buffers, packer = self._shape, self._buffers, self._packer
        width, chosen = shape.layers[index].intermediate, block.experts_per_token
        exact = buffers.activation("routed", NumberKind.FP32, shape.hidden)
        logits = buffers.rows("router", len(block.router))
        routing = buffers.routing(len(block.router), chosen)
        hidden = buffers.activation("normed", self._need, shape.hidden)
        sorted_hidden = buffers.activation("sorted", self._need, shape.hidden, chosen)
        gate_up = buffers.rows("expert_gate_up", 2 * width, chosen)
        gated = buffers.activation("expert_gated", self._need, width, chosen)
        result = buffers.rows("expert_result", shape.hidden, chosen)
        return [
            norm(buffers.residual, packer.vector(layer.mlp_norm), shape.rms_eps, exact),
            linear(exact, packer.matrix(Matrix(block.router), "fp32"), logits),
            route(logits, routing, normalise=block.normalise),
            convert(exact.data, hidden),
            sorted_gather(hidden, routing, sorted_hidden),
            linear(sorted_hidden, packer.experts(block.gate_up), gate_up, select=routing.rows, offsets=routing.offsets),
            gate(gate_up, gated, _GATES[shape.activation], routing.rows),
            linear(gated, packer.experts(block.down), result, select=routing.rows, offsets=routing.offsets),
            combine(result, routing, buffers.residual),
        ]

    def _join(self, x: Activation, weight: PackedLinear, out_norm: torch.Tensor | None) -> list[Op]:
        """Add the projection of `x` to the residual stream, normalised first where the family does."""
        residual = self._buffers.residual
        if out_norm is None:
            return [linear(x, weight, residual, accumulate=True)]
        result = self._buffers.rows("result", self._shape.hidden)
        added = norm_add(result, self._packer.vector(out_norm), self._shape.rms_eps, residual)
        return [linear(x, weight, result), added]


def _rope(frequencies: torch.Tensor, positions: int) -> Rope:
    """Tables of the angles of `frequencies` [head_dim / 2] at each position."""
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies.float()[None, :]
    return Rope(angles.cos().contiguous(), angles.sin().contiguous())
