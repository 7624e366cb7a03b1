"""Llama family: pre-norm decoder with rotary positions, grouped-query attention and a gated feed-forward block.

Works on a flat token axis: prefill chunks and decodes of many sequences in one forward. Query, key and value
projections are one matrix, gate and up projections another. Only rows that will be sampled reach the final norm and
the head.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from forebay.engine.attention.batch import AttentionBatch
from forebay.engine.attention.paged import PagedCache, paged_attention
from forebay.engine.layers.linear import Linear, PlainLinear, linear
from forebay.engine.layers.rotary import rotary_frequencies
from forebay.engine.loader.metadata import ModelConfig
from forebay.engine.loader.weights import TensorSource
from forebay.kernels.rms_norm import rms_norm
from forebay.kernels.rope import rope, rope_tables
from forebay.kernels.silu_mul import silu_mul


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; `qkv` is [q | k | v] by rows, `gate_up` is [gate | up]."""

    attention_norm: torch.Tensor
    qkv: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """A whole model in one dtype; a tied `head` multiplies by `embedding` itself."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: Linear
    frequencies: torch.Tensor


class LlamaModel:
    """Forward pass over weights that never change."""

    def __init__(self, config: ModelConfig, weights: LlamaWeights) -> None:
        self.config = config
        self._weights = weights
        self.dtype = weights.embedding.dtype
        self._cosine, self._sine = rope_tables(weights.frequencies, config.max_positions, self.dtype)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        cache: PagedCache,
        sampled: torch.Tensor,
    ) -> torch.Tensor:
        """Logits [len(sampled), vocab] of the flat rows `sampled`, for `tokens` at `positions`, both int64 [n].

        Keys and values of all n tokens are written to `cache` as `batch` says.
        """
        cosine, sine = self._cosine[positions].unsqueeze(1), self._sine[positions].unsqueeze(1)
        x = self._weights.embedding[tokens]
        for index, layer in enumerate(self._weights.layers):
            x = x + self._attention(index, layer, x, cosine, sine, batch, cache)
            hidden = rms_norm(x, layer.mlp_norm, self.config.rms_eps)
            x = x + layer.down.apply(silu_mul(layer.gate_up.apply(hidden)))
        last = rms_norm(x[sampled], self._weights.final_norm, self.config.rms_eps)
        return self._weights.head.apply(last)

    def _attention(
        self,
        index: int,
        layer: LayerWeights,
        x: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        batch: AttentionBatch,
        cache: PagedCache,
    ) -> torch.Tensor:
        config = self.config
        qkv = layer.qkv.apply(rms_norm(x, layer.attention_norm, config.rms_eps))
        qkv = qkv.view(len(x), config.heads + 2 * config.kv_heads, config.head_dim)
        turned = rope(qkv[:, : config.heads + config.kv_heads], cosine, sine)
        query, keys = turned[:, : config.heads], turned[:, config.heads :]
        values = qkv[:, config.heads + config.kv_heads :]
        return layer.output.apply(paged_attention(cache, index, query, keys, values, batch))


def load_llama(
    source: TensorSource, config: ModelConfig, cast: Callable[[torch.Tensor], torch.Tensor], threads: int
) -> LlamaModel:
    """Read every tensor of `source` through `cast`, `threads` at a time; `InvalidSpec` names one that is missing."""
    reader = _Reader(source, config, cast)
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="load") as pool:
        # The embedding is the largest tensor by far: start it first.
        embedding_task = pool.submit(reader.matrix, "model.embed_tokens", config.vocab, config.hidden)
        layers = tuple(pool.map(reader.layer, range(config.layers)))
        embedding = embedding_task.result()
    # A tied head is not packed: the lookup needs the plain layout, and a second copy would cost its memory again.
    tied = config.tied_embeddings
    head = PlainLinear(embedding) if tied else linear(reader.matrix("lm_head", config.vocab, config.hidden))
    factors = source.tensor("rope_factors", (config.head_dim // 2,)) if source.has("rope_factors") else None
    weights = LlamaWeights(embedding, layers, reader.norm("model.norm"), head, rotary_frequencies(config, factors))
    return LlamaModel(config, weights)


class _Reader:
    """Fetches and fuses tensors by name; safe to call from several threads."""

    def __init__(self, source: TensorSource, config: ModelConfig, cast: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._source = source
        self._config = config
        self._cast = cast

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        return self._cast(self._source.tensor(f"{name}.weight", (rows, columns)))

    def norm(self, name: str) -> torch.Tensor:
        return self._cast(self._source.tensor(f"{name}.weight", (self._config.hidden,)))

    def linear(self, parts: dict[str, int], columns: int, biased: bool) -> Linear:
        """Projections stacked by rows; `parts` maps a name to its row count."""
        matrix = torch.cat([self.matrix(name, rows, columns) for name, rows in parts.items()])
        if not biased:
            return linear(matrix)
        biases = [self._cast(self._source.tensor(f"{name}.bias", (rows,))) for name, rows in parts.items()]
        return linear(matrix, torch.cat(biases))

    def layer(self, index: int) -> LayerWeights:
        config, prefix = self._config, f"model.layers.{index}"
        query, key_value = config.heads * config.head_dim, config.kv_heads * config.head_dim
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        qkv = {f"{attention}.q_proj": query, f"{attention}.k_proj": key_value, f"{attention}.v_proj": key_value}
        gate_up = {f"{mlp}.gate_proj": config.intermediate, f"{mlp}.up_proj": config.intermediate}
        return LayerWeights(
            attention_norm=self.norm(f"{prefix}.input_layernorm"),
            qkv=self.linear(qkv, config.hidden, config.attention_bias),
            output=self.linear({f"{attention}.o_proj": config.hidden}, query, config.attention_bias),
            mlp_norm=self.norm(f"{prefix}.post_attention_layernorm"),
            gate_up=self.linear(gate_up, config.hidden, config.mlp_bias),
            down=self.linear({f"{mlp}.down_proj": config.hidden}, config.intermediate, config.mlp_bias),
        )
