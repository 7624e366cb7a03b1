"""Rotary frequencies of a model, with the stretching that long-context checkpoints ask for.

Formulas: base frequencies theta^(-2i/d) (Su et al., 2021); "linear" position interpolation (Chen et al., 2023);
"llama3" stretches long wavelengths only, with a linear blend between the two bounds (Llama 3 release).
"""

import math

import torch

from forebay.engine.loader.metadata import RopeScaling


def rotary_frequencies(
    head_dim: int, theta: float, scaling: RopeScaling | None = None, factors: torch.Tensor | None = None
) -> torch.Tensor:
    """fp32 [head_dim / 2] in radians a token; `factors` of the same shape divide it when a file carries its own."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (theta**exponents)
    if factors is not None:
        return frequencies / factors.float()
    if scaling is None:
        return frequencies
    return _stretched(frequencies, scaling)


def _stretched(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    wavelengths = 2 * math.pi / frequencies
    longest = scaling.original_positions / scaling.low_frequency_factor
    shortest = scaling.original_positions / scaling.high_frequency_factor
    span = scaling.high_frequency_factor - scaling.low_frequency_factor
    blend = (scaling.original_positions / wavelengths - scaling.low_frequency_factor) / span
    blended = (1 - blend) * frequencies / scaling.factor + blend * frequencies
    stretched = torch.where(wavelengths > longest, frequencies / scaling.factor, blended)
    return torch.where(wavelengths < shortest, frequencies, stretched)
