"""Loads the compiled C library of the variant that this CPU can run, or says why there is none.

Flags come from /proc/cpuinfo. `v4` needs AVX-512 F, BW, VL, DQ, CD and VNNI and uses avx512_bf16 where the CPU has it;
`v3` needs AVX2, FMA and F16C. torch is imported first, so that both use one OpenMP runtime and its threads.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch

from forebay.kernels.cpu.build import reason_against_building
from forebay.kernels.cpu.records import RECORDS
from forebay.kernels.cpu_variants import library_path, runnable_variants


@dataclass(frozen=True, slots=True)
class CpuLibrary:
    """A loaded library: `variant` is "v4" or "v3"; `bf16_instructions` says whether avx512_bf16 is used."""

    variant: str
    bf16_instructions: bool
    handle: ctypes.CDLL

    def describe(self) -> str:
        """Short form for the resolved configuration, as "v4 with avx512_bf16"."""
        return self.variant + (" with avx512_bf16" if self.bf16_instructions else "")


@dataclass(frozen=True, slots=True)
class Unavailable:
    """No library for this machine, with the reason in words."""

    reason: str


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Instruction-set flags of the first CPU; empty when the file is not there."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def load(variant: str | None = None, *, bf16_instructions: bool | None = None) -> CpuLibrary | Unavailable:
    """The library for this CPU; `variant` and `bf16_instructions` narrow the choice (None = the best there is)."""
    flags = cpu_flags()
    runnable = runnable_variants(flags)
    if not runnable:
        return Unavailable("the CPU has neither AVX2 with FMA and F16C nor AVX-512 with VNNI")
    chosen = variant or runnable[0]
    if chosen not in runnable:
        return Unavailable(f"the CPU cannot run variant {chosen}")
    path = library_path(chosen)
    if not path.exists():
        return Unavailable(reason_against_building() or f"{path.name} was not built with this installation")
    try:
        handle = _open(path)
    except OSError as error:
        return Unavailable(f"{path.name} cannot be loaded: {error}")
    has_bf16 = chosen == "v4" and "avx512_bf16" in flags
    return CpuLibrary(chosen, has_bf16 if bf16_instructions is None else has_bf16 and bf16_instructions, handle)


def _open(path: Path) -> ctypes.CDLL:
    torch.get_num_threads()  # torch's OpenMP runtime is in the process before ours is looked for
    handle = ctypes.CDLL(str(path))
    handle.forebay_run.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    handle.forebay_run.restype = None
    handle.forebay_record_bytes.argtypes = [ctypes.c_int32]
    handle.forebay_record_bytes.restype = ctypes.c_int32
    for kind, record in RECORDS.items():
        built = handle.forebay_record_bytes(kind)
        if built != ctypes.sizeof(record):
            raise OSError(f"{record.__name__} is {ctypes.sizeof(record)} bytes here and {built} in the library")
    return handle
