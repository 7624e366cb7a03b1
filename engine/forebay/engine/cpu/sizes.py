"""Bytes of a decoder's weights in the C library's packed forms, from the configuration alone.

Matrices are padded to panels of 48 outputs; int8 has a scale for each output, int4 a scale and a minimum for each group
of 32 inputs; norms and biases are fp32. The embedding is held as a plain table beside the packed head. No torch: sizes
are fitted before the core process exists; a test holds them against real packed weights.
"""

from forebay.engine.loader.metadata import ModelConfig

_PANEL = 48
_GROUP = 32


def matrix_bytes(rows: int, columns: int, weights: str) -> int:
    """Bytes of one packed [rows, columns] matrix without bias."""
    padded = -(-rows // _PANEL) * _PANEL
    match weights:
        case "int8":
            return padded * (columns + 4)
        case "int4":
            return padded * (columns // 2 + columns // _GROUP * 4)
        case "bf16":
            return padded * columns * 2
        case _:
            return padded * columns * 4


def packed_weight_bytes(config: ModelConfig, weights: str) -> int:
    """Bytes of all weights of a native model packed as `weights` (bf16, fp32, int8 or int4)."""
    head = "int8" if weights == "int4" else weights
    table = config.vocab * config.hidden * (4 if weights == "fp32" else 2)
    layers = sum(_attention(config, weights) + _feed_forward(config, layer, weights) for layer in range(config.layers))
    return table + matrix_bytes(config.vocab, config.hidden, head) + layers + 4 * config.hidden


def _attention(config: ModelConfig, weights: str) -> int:
    query, fused = config.heads * config.head_dim, (config.heads + 2 * config.kv_heads) * config.head_dim
    norms = (4 if config.has_output_norms else 2) * config.hidden + (2 * config.head_dim if config.has_qk_norm else 0)
    biases = _padded(fused) + _padded(config.hidden) if config.attention_bias else 0
    projections = matrix_bytes(fused, config.hidden, weights) + matrix_bytes(config.hidden, query, weights)
    return projections + 4 * (norms + biases)


def _feed_forward(config: ModelConfig, layer: int, weights: str) -> int:
    experts = config.experts
    if experts is not None and layer not in experts.dense_layers:
        router = matrix_bytes(experts.count, config.hidden, "fp32")
        return router + experts.count * _block(config.hidden, experts.intermediate, weights)
    biases = _padded(2 * config.intermediate) + _padded(config.hidden) if config.mlp_bias else 0
    return _block(config.hidden, config.intermediate, weights) + 4 * biases


def _block(hidden: int, width: int, weights: str) -> int:
    return matrix_bytes(2 * width, hidden, weights) + matrix_bytes(hidden, width, weights)


def _padded(rows: int) -> int:
    return -(-rows // _PANEL) * _PANEL
