"""Weights of a decoder in the C library's packed forms.

A matrix is rounded to the engine's `values` first, then packed as `weights`; the plain tensor lives only until then.
Norms and biases are fp32.
"""

from dataclasses import dataclass
from typing import Final

import torch

from forebay.engine.models.decoder import Matrix
from forebay.engine.runner.compute import Compute
from forebay.kernels.cpu import NumberKind, PackedLinear, pack_linear, stack_experts

KINDS: Final = {
    "fp32": NumberKind.FP32,
    "bf16": NumberKind.BF16,
    "int8": NumberKind.INT8,
    "int4": NumberKind.INT4,
}
DTYPES: Final = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class Packer:
    """Packs for the formats of one engine."""

    compute: Compute

    def vector(self, values: torch.Tensor) -> torch.Tensor:
        """A norm weight, rounded to the engine's values, as contiguous fp32."""
        return values.to(DTYPES[self.compute.values]).float().contiguous()

    def optional(self, values: torch.Tensor | None) -> torch.Tensor | None:
        """`vector`, or None for None."""
        return None if values is None else self.vector(values)

    def matrix(self, matrix: Matrix, weights: str | None = None) -> PackedLinear:
        """A projection packed as `weights`, the engine's own when not given."""
        values = DTYPES[self.compute.values]
        kind = KINDS[weights or self.compute.weights]
        return pack_linear(matrix.weight.to(values), kind, self.optional(matrix.bias), minimums=True)

    def experts(self, stacked: torch.Tensor) -> PackedLinear:
        """`stacked` [experts, out, in] as one packed matrix."""
        return stack_experts([self.matrix(Matrix(weight)) for weight in stacked])
