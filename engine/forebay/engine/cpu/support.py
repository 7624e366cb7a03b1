"""Whether the cpu kernels can serve a model on this machine, without torch and without loading them.

The library wants whole vectors: head sizes and widths in multiples of 16 (of 32 for int4, whose groups are that long)
and pages in tiles of 16 tokens. Called when the configuration is resolved.
"""

from typing import Final

from forebay.engine.loader.metadata import ModelConfig
from forebay.engine.runner.compute import CpuFeatures
from forebay.kernels.cpu_variants import problem

_LANES: Final = 16
_INT4_GROUP: Final = 32
_LARGEST_HEAD: Final = 256


def cpu_problem(config: ModelConfig, features: CpuFeatures, dtype: str, page_tokens: int) -> str:
    """Why the cpu kernels cannot compute this model here as `dtype`; empty when they can."""
    if config.is_generic:
        return f"architecture {config.architecture} has no native module"
    if page_tokens % _LANES:
        return f"page_tokens {page_tokens} is not a multiple of {_LANES}"
    if config.head_dim % _LANES or config.head_dim > _LARGEST_HEAD:
        return f"head size {config.head_dim} is not a multiple of {_LANES} up to {_LARGEST_HEAD}"
    lanes = _INT4_GROUP if dtype == "int4" else _LANES
    widths = {
        "hidden size": config.hidden,
        "attention width": config.heads * config.head_dim,
        "feed-forward width": config.intermediate,
        "expert width": config.experts.intermediate if config.experts else lanes,
    }
    for name, width in widths.items():
        if width % lanes:
            return f"{name} {width} is not a multiple of {lanes}"
    return problem(features.flags)
