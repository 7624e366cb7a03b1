"""Runs a decoder description on torch: any CPU, every option, the reference for the faster executors.

Works on a flat token axis: prefill chunks and decodes of many sequences in one forward. Only rows whose logits are
wanted reach the final norm and the head. One `AttentionBatch` for each layer group and one rotary table for each rope
are made a step and shared by all layers. Called from the runner's worker thread.
"""

from collections.abc import Sequence

import torch

from forebay.engine.attention.batch import AttentionBatch, PageView, build_batch
from forebay.engine.attention.paged import PagedCache, paged_attention
from forebay.engine.models.decoder import DecoderSpec
from forebay.engine.models.torch_weights import TORCH_DTYPES, LayerWeights, Rounding, pack_decoder
from forebay.engine.runner.compute import Compute
from forebay.engine.runner.executor import ExecutorSizes, StepInputs
from forebay.kernels.paged_attention import Scoring
from forebay.kernels.rms_norm import rms_norm
from forebay.kernels.rope import rope, rope_tables

_Turn = tuple[torch.Tensor, torch.Tensor]


class TorchExecutor:
    """`Executor` over a native decoder; weights never change."""

    def __init__(self, spec: DecoderSpec, compute: Compute, sizes: ExecutorSizes) -> None:
        """Read the weights and allocate the pools; `InvalidSpec` for a broken checkpoint or no memory."""
        shape = spec.shape
        rounding = Rounding(compute)
        self.vocab = shape.vocab
        self.dtype = rounding.dtype
        self._shape = shape
        self._frequencies = spec.frequencies
        self._scoring = Scoring(shape.attention_scale, shape.attention_softcap)
        self._cache = PagedCache(
            shape.groups, (shape.kv_heads, shape.head_dim), sizes.pages, sizes.page_tokens, TORCH_DTYPES[compute.kv]
        )
        self._weights = pack_decoder(spec, rounding, sizes.threads)

    def copy_rows(self, group: int, copies: Sequence[tuple[int, int, int]]) -> None:
        """See `Executor.copy_rows`."""
        self._cache.copy_rows(group, copies)

    @torch.inference_mode()
    def logits(self, inputs: StepInputs) -> torch.Tensor:
        """See `Executor.logits`."""
        logits = self._weights.head.apply(self._final(inputs)).float()
        cap = self._shape.logit_softcap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits

    @torch.inference_mode()
    def hidden(self, inputs: StepInputs) -> torch.Tensor:
        """See `Executor.hidden`."""
        return self._final(inputs).float()

    def _final(self, inputs: StepInputs) -> torch.Tensor:
        shape, weights = self._shape, self._weights
        positions = torch.from_numpy(inputs.positions)
        turns = [rope_tables(frequencies, positions, self.dtype) for frequencies in self._frequencies]
        batches = [
            build_batch(
                inputs.starts,
                inputs.counts,
                table,
                PageView(self._cache.page_tokens, group.window_tokens, self.dtype),
            )
            for group, table in zip(shape.groups, inputs.tables, strict=True)
        ]
        x = weights.embedding[torch.from_numpy(inputs.tokens)]
        if shape.embedding_scale != 1.0:
            x = x * shape.embedding_scale
        for index, layer in enumerate(weights.layers):
            place = shape.layers[index]
            mixed = self._attention(index, layer, x, turns[place.rope], batches[place.group])
            x = x + self._normed(mixed, layer.attention_out_norm)
            fed = layer.mlp.apply(rms_norm(x, layer.mlp_norm, shape.rms_eps))
            x = x + self._normed(fed, layer.mlp_out_norm)
        return rms_norm(x[torch.from_numpy(inputs.sampled)], weights.final_norm, shape.rms_eps)

    def _attention(
        self, index: int, layer: LayerWeights, x: torch.Tensor, turn: _Turn, batch: AttentionBatch
    ) -> torch.Tensor:
        shape = self._shape
        heads, turned_heads = shape.heads, shape.heads + shape.kv_heads
        qkv = layer.qkv.apply(rms_norm(x, layer.attention_norm, shape.rms_eps))
        qkv = qkv.view(len(x), heads + 2 * shape.kv_heads, shape.head_dim)
        query_keys = qkv[:, :turned_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            normed = (
                rms_norm(qkv[:, :heads], layer.query_norm, shape.rms_eps),
                rms_norm(qkv[:, heads:turned_heads], layer.key_norm, shape.rms_eps),
            )
            query_keys = torch.cat(normed, dim=1)
        turned = rope(query_keys, *turn)
        query, keys, values = turned[:, :heads], turned[:, heads:], qkv[:, turned_heads:]
        return layer.output.apply(paged_attention(self._cache, index, query, keys, values, batch, self._scoring))

    def _normed(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return x if weight is None else rms_norm(x, weight, self._shape.rms_eps)
