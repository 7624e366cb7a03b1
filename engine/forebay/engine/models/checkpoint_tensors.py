"""Fills a decoder's description from a checkpoint: names, fusing of projections, norms made complete.

The native families differ in names and options only, and the options are all in `ModelConfig`. Experts come fused
(`experts.gate_up_proj`), stacked (GGUF) or one by one. Called by executors, layer by layer and from several threads.
"""

from collections.abc import Mapping

import torch

from forebay.engine.loader.metadata import ModelConfig
from forebay.engine.loader.weights import TensorSource
from forebay.engine.models.decoder import DenseBlock, ExpertBlock, LayerSpec, Matrix


class CheckpointTensors:
    """`DecoderTensors` of a native model."""

    def __init__(self, source: TensorSource, config: ModelConfig) -> None:
        self._source = source
        self._config = config
        # Gemma multiplies by 1 + weight; GGUF files have the 1 added already.
        self._norm_offset = 1.0 if config.has_output_norms and not source.norms_are_complete else 0.0

    def embedding(self) -> torch.Tensor:
        """See `DecoderTensors.embedding`."""
        return self._source.tensor("model.embed_tokens.weight", (self._config.vocab, self._config.hidden))

    def final_norm(self) -> torch.Tensor:
        """See `DecoderTensors.final_norm`."""
        return self._norm("model.norm", self._config.hidden)

    def head(self) -> Matrix:
        """See `DecoderTensors.head`."""
        return Matrix(self._source.tensor("lm_head.weight", (self._config.vocab, self._config.hidden)))

    def layer(self, index: int) -> LayerSpec:
        """See `DecoderTensors.layer`."""
        config, prefix = self._config, f"model.layers.{index}"
        query, key_value = config.heads * config.head_dim, config.kv_heads * config.head_dim
        attention = f"{prefix}.self_attn"
        qkv = {f"{attention}.q_proj": query, f"{attention}.k_proj": key_value, f"{attention}.v_proj": key_value}
        # The name that other families give to the norm before the feed-forward block is the one after attention here.
        before_mlp = "pre_feedforward_layernorm" if config.has_output_norms else "post_attention_layernorm"
        return LayerSpec(
            attention_norm=self._norm(f"{prefix}.input_layernorm", config.hidden),
            qkv=self._matrix(qkv, config.hidden, config.attention_bias),
            query_norm=self._norm(f"{attention}.q_norm", config.head_dim) if config.has_qk_norm else None,
            key_norm=self._norm(f"{attention}.k_norm", config.head_dim) if config.has_qk_norm else None,
            output=self._matrix({f"{attention}.o_proj": config.hidden}, query, config.attention_bias),
            attention_out_norm=self._output_norm(f"{prefix}.post_attention_layernorm"),
            mlp_norm=self._norm(f"{prefix}.{before_mlp}", config.hidden),
            mlp=self._feed_forward(f"{prefix}.mlp", index),
            mlp_out_norm=self._output_norm(f"{prefix}.post_feedforward_layernorm"),
        )

    def _feed_forward(self, prefix: str, index: int) -> DenseBlock | ExpertBlock:
        config = self._config
        if config.experts is not None and index not in config.experts.dense_layers:
            return self._experts(prefix)
        gate_up = {f"{prefix}.gate_proj": config.intermediate, f"{prefix}.up_proj": config.intermediate}
        return DenseBlock(
            gate_up=self._matrix(gate_up, config.hidden, config.mlp_bias),
            down=self._matrix({f"{prefix}.down_proj": config.hidden}, config.intermediate, config.mlp_bias),
        )

    def _experts(self, prefix: str) -> ExpertBlock:
        experts, hidden = self._config.experts, self._config.hidden
        assert experts is not None  # noqa: S101 - the caller asked
        count, width = experts.count, experts.intermediate
        if self._source.has(f"{prefix}.experts.gate_up_proj"):
            gate_up = self._source.tensor(f"{prefix}.experts.gate_up_proj", (count, 2 * width, hidden))
            down = self._source.tensor(f"{prefix}.experts.down_proj", (count, hidden, width))
        else:
            gate, up = (self._stacked(f"{prefix}.experts", part, (width, hidden)) for part in ("gate_proj", "up_proj"))
            gate_up = torch.cat((gate, up), dim=1)
            down = self._stacked(f"{prefix}.experts", "down_proj", (hidden, width))
        return ExpertBlock(
            router=self._source.tensor(f"{prefix}.gate.weight", (count, hidden)),
            gate_up=gate_up,
            down=down,
            experts_per_token=experts.per_token,
            normalise=experts.normalise,
        )

    def _stacked(self, prefix: str, part: str, shape: tuple[int, int]) -> torch.Tensor:
        """[experts, *shape] from one tensor of all experts or from one for each."""
        experts = self._config.experts
        assert experts is not None  # noqa: S101 - the caller asked
        whole = f"{prefix}.{part}.weight"
        if self._source.has(whole):
            return self._source.tensor(whole, (experts.count, *shape))
        return torch.stack(
            [self._source.tensor(f"{prefix}.{expert}.{part}.weight", shape) for expert in range(experts.count)]
        )

    def _norm(self, name: str, width: int) -> torch.Tensor:
        weight = self._source.tensor(f"{name}.weight", (width,))
        return weight.float() + self._norm_offset if self._norm_offset else weight

    def _output_norm(self, name: str) -> torch.Tensor | None:
        return self._norm(name, self._config.hidden) if self._config.has_output_norms else None

    def _matrix(self, parts: Mapping[str, int], columns: int, biased: bool) -> Matrix:
        """Projections stacked by rows; `parts` maps a name to its row count."""
        weights = [self._source.tensor(f"{name}.weight", (rows, columns)) for name, rows in parts.items()]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        if not biased:
            return Matrix(weight)
        return Matrix(weight, torch.cat([self._source.tensor(f"{name}.bias", (rows,)) for name, rows in parts.items()]))
