"""What every routine's builder shares: an op (a record with what it points to) and buffers of activations."""

from ctypes import Structure
from dataclasses import dataclass, field

import torch

from forebay.kernels.cpu.records import QUANT_GROUP, SCALE_GROUP, ActivationRecord, NumberKind, OpHeader, OpKind, Rows

DTYPES = {NumberKind.FP32: torch.float32, NumberKind.BF16: torch.bfloat16, NumberKind.INT8: torch.int8}


@dataclass(frozen=True, slots=True)
class Op:
    """One routine with its buffers; `keep` holds the tensors alive that `record` points to.

    `capacity` is how many tokens, or sampled rows where `sampled`, its smallest buffer has rows for.
    """

    record: Structure
    keep: tuple[torch.Tensor | None, ...]
    capacity: int
    sampled: bool = False
    scratch_bytes: int = 0  # of each thread


@dataclass(frozen=True, slots=True)
class Activation:
    """Rows that a linear layer reads: `data` [rows, width] in fp32, bf16 or int8.

    int8 rows carry `scales` fp32 and `sums` int32 [rows, width / 64 rounded up], one for each 64 elements, and,
    for int4 weights, `group_sums` [rows, width / 32].
    """

    data: torch.Tensor
    scales: torch.Tensor | None = None
    sums: torch.Tensor | None = None
    group_sums: torch.Tensor | None = None

    @property
    def kind(self) -> NumberKind:
        """Storage of the rows."""
        return number_kind(self.data.dtype)

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.data.shape[1]

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        """Everything that must stay alive with an op."""
        return (self.data, self.scales, self.sums, self.group_sums)

    def record(self) -> ActivationRecord:
        """The C form."""
        return ActivationRecord(
            data=address(self.data),
            scales=address(self.scales),
            sums=address(self.sums),
            group_sums=address(self.group_sums),
            width=self.width,
            kind=self.kind,
        )

    def float(self) -> torch.Tensor:
        """The values in fp32, [rows, width]; for tests and for routines outside the library."""
        values = self.data.float()
        if self.scales is None:
            return values
        return values * self.scales.repeat_interleave(SCALE_GROUP, dim=1)[:, : self.width]


@dataclass(frozen=True, slots=True)
class Selection:
    """How many rows an op has: the step's tokens or its sampled rows, times `multiple`."""

    rows: Rows = Rows.TOKENS
    multiple: int = 1

    @property
    def sampled(self) -> bool:
        """Whether the rows are the sampled ones."""
        return self.rows == Rows.SAMPLED

    def capacity(self, *buffers: torch.Tensor) -> int:
        """Tokens, or sampled rows, that all of the buffers have rows for."""
        return min(len(buffer) for buffer in buffers) // self.multiple

    def header(self, kind: OpKind) -> OpHeader:
        """The record's first field."""
        return OpHeader(kind=kind, rows=self.rows, multiple=self.multiple)


TOKENS = Selection()
SAMPLED = Selection(Rows.SAMPLED)


@dataclass(frozen=True, slots=True)
class Shape:
    """Expected shape and dtype of a buffer, for one readable error."""

    name: str
    width: int
    dtype: torch.dtype = field(default=torch.float32)

    def check(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself; `ValueError` when it is not [rows, width] of the dtype, contiguous."""
        if tensor.dim() != 2 or tensor.shape[1] != self.width or tensor.dtype != self.dtype:
            wanted = f"[rows, {self.width}] {self.dtype}"
            raise ValueError(f"{self.name} is {list(tensor.shape)} {tensor.dtype}, expected {wanted}")
        if not tensor.is_contiguous():
            raise ValueError(f"{self.name} is not contiguous")
        return tensor


def allocate_activation(kind: NumberKind, rows: int, width: int) -> Activation:
    """Zeroed buffer of `rows` for `kind` activations; INT4 names int8 rows with group sums, for int4 weights."""
    if width % 16 or (kind == NumberKind.INT4 and width % QUANT_GROUP):
        raise ValueError(f"activations of width {width}: the width must be a multiple of 16, of 32 for int4 weights")
    if kind in (NumberKind.FP32, NumberKind.BF16):
        return Activation(torch.zeros(rows, width, dtype=DTYPES[kind]))
    groups = torch.zeros(rows, width // QUANT_GROUP, dtype=torch.int32) if kind == NumberKind.INT4 else None
    scales = -(-width // SCALE_GROUP)
    return Activation(
        torch.zeros(rows, width, dtype=torch.int8),
        torch.zeros(rows, scales),
        torch.zeros(rows, scales, dtype=torch.int32),
        groups,
    )


def number_kind(dtype: torch.dtype) -> NumberKind:
    """The library's name of a dtype; `ValueError` for others."""
    for kind, known in DTYPES.items():
        if known == dtype:
            return kind
    raise ValueError(f"{dtype} is not a storage type of the CPU library")


def address(tensor: torch.Tensor | None) -> int | None:
    """Pointer to a contiguous tensor's first element; None stays None."""
    if tensor is None:
        return None
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of shape {list(tensor.shape)} is not contiguous")
    return tensor.data_ptr()
