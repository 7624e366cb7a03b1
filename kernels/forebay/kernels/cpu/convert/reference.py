"""Int8 quantization of activations in torch, for tests."""

import torch
from torch.nn import functional

from forebay.kernels.cpu.records import SCALE_GROUP


def quantize_reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 values [rows, width] and fp32 scales [rows, width / 64 rounded up] of `x` [rows, width]."""
    rows, width = x.shape
    groups = functional.pad(x, (0, -width % SCALE_GROUP)).view(rows, -1, SCALE_GROUP)
    most = groups.abs().amax(dim=2)
    inverse = torch.where(most > 0, 127.0 / most, torch.zeros_like(most))
    values = (groups * inverse[:, :, None]).round().to(torch.int8).view(rows, -1)[:, :width]
    return values.contiguous(), most / 127.0
