"""From a checkpoint to a decoder description, for every architecture with a native module.

The names are `loader.metadata.NATIVE_ARCHITECTURES`: the metadata half decides before torch is imported. Called by the
executors' builders.
"""

from dataclasses import replace
from pathlib import Path

import torch

from forebay.engine.layers.rotary import rotary_frequencies
from forebay.engine.loader.checkpoint import read_pooling
from forebay.engine.loader.metadata import NATIVE_ARCHITECTURES, ModelConfig, refuse_architecture
from forebay.engine.loader.weights import TensorSource, open_tensors
from forebay.engine.models.checkpoint_tensors import CheckpointTensors
from forebay.engine.models.decoder import DecoderShape, DecoderSpec, LayerShape


def open_decoder(path: Path, config: ModelConfig) -> DecoderSpec:
    """The decoder at a resolved path; `InvalidSpec` for an architecture without a native module or broken files."""
    if config.architecture not in NATIVE_ARCHITECTURES:
        raise refuse_architecture(config.architecture, str(path))
    source = open_tensors(path, config)
    if not source.has("lm_head.weight") and read_pooling(path) is not None:
        # An embedding model is saved without its head; nobody asks for its logits.
        config = replace(config, tied_embeddings=True)
    return DecoderSpec(decoder_shape(config), _frequencies(source, config), CheckpointTensors(source, config))


def decoder_shape(config: ModelConfig) -> DecoderShape:
    """The numbers of a native decoder."""
    groups = config.layer_groups
    group_of = {layer: place for place, group in enumerate(groups) for layer in group.layers}
    is_gemma = config.architecture == "gemma3_text"
    return DecoderShape(
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab=config.vocab,
        max_positions=config.max_positions,
        rms_eps=config.rms_eps,
        attention_scale=config.attention_scale or config.head_dim**-0.5,
        attention_softcap=config.attention_softcap,
        logit_softcap=config.logit_softcap,
        embedding_scale=config.hidden**0.5 if is_gemma else 1.0,
        activation="gelu_tanh" if is_gemma else "silu",
        has_qk_norm=config.has_qk_norm,
        has_output_norms=config.has_output_norms,
        tied_head=config.tied_embeddings,
        layers=tuple(_layer_shape(config, layer, group_of[layer]) for layer in range(config.layers)),
        groups=groups,
    )


def _layer_shape(config: ModelConfig, layer: int, group: int) -> LayerShape:
    experts = config.experts if config.experts is not None and layer not in config.experts.dense_layers else None
    is_sliding = layer in config.sliding_layers
    return LayerShape(
        rope=1 if is_sliding and config.local_rope_theta else 0,
        group=group,
        window_tokens=config.window_tokens if is_sliding else 0,
        intermediate=config.intermediate if experts is None else experts.intermediate,
        experts=0 if experts is None else experts.count,
        experts_per_token=0 if experts is None else experts.per_token,
    )


def _frequencies(source: TensorSource, config: ModelConfig) -> tuple[torch.Tensor, ...]:
    factors = source.tensor("rope_factors", (config.head_dim // 2,)) if source.has("rope_factors") else None
    stretched = rotary_frequencies(config.head_dim, config.rope_theta, config.rope_scaling, factors)
    if not config.local_rope_theta:
        return (stretched,)
    return (stretched, rotary_frequencies(config.head_dim, config.local_rope_theta))
