"""Projections whose weights never change.

oneDNN multiplies faster when the weights are laid out in its own blocks beforehand, most of all for the few rows of a
decode step (1.2 to 1.8 times, measured). The operators are the ones that torch's compiler emits; a build of torch
without oneDNN uses the plain product.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional


class Linear(Protocol):
    """A projection from `in` to `out` features."""

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """x [n, in] @ matrix^T + bias, [n, out]."""


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """`matrix` [out, in] as it is, and an optional `bias` [out]."""

    matrix: torch.Tensor
    bias: torch.Tensor | None = None

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear.apply`."""
        return functional.linear(x, self.matrix, self.bias)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """`blocks` is the matrix in oneDNN's layout."""

    blocks: torch.Tensor
    bias: torch.Tensor | None

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear.apply`."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.blocks, self.bias, "none", [], "")  # noqa: SLF001 - the only door to oneDNN's packed product
        return product


def linear(matrix: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The fastest form of a projection by `matrix` [out, in]; the matrix itself is not kept when it is packed."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call] # torch leaves it unannotated
        return PlainLinear(matrix, bias)
    return PackedLinear(torch.ops.mkldnn._reorder_linear_weight(matrix, None), bias)  # noqa: SLF001 - see above
