"""Which number formats a CPU should compute in, from its feature flags.

bf16 matrix products are fast only with hardware support (avx512_bf16, AMX, Arm bf16): elsewhere torch widens them at a
tenth of the speed. There bf16 weights keep their bf16 values but are held and multiplied in fp32, at twice the memory.
No torch here: configuration resolution asks before the core process exists.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forebay.contract.errors import InvalidSpec

PRECISIONS: Final = ("bf16", "fp32")
_BF16_FLAGS: Final = ("avx512_bf16", "amx_bf16", "bf16")


@dataclass(frozen=True, slots=True)
class CpuFeatures:
    """What /proc/cpuinfo says of the first CPU."""

    model_name: str
    flags: frozenset[str]


@dataclass(frozen=True, slots=True)
class Compute:
    """Formats of one engine: `values` of the weights, `matmul` (storage and products of weights), `kv` (cache)."""

    values: str
    matmul: str
    kv: str
    reason: str


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> CpuFeatures:
    """Features of this machine; no flags at all when the file cannot be read."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return parse_cpuinfo(text)


def parse_cpuinfo(text: str) -> CpuFeatures:
    """The first "model name" and "flags" (x86) or "Features" (Arm) lines of a cpuinfo text."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip().lower(), value.strip())
    flags = found.get("flags", found.get("features", ""))
    return CpuFeatures(found.get("model name", "unknown"), frozenset(flags.split()))


def choose_compute(dtype: str, features: CpuFeatures) -> Compute:
    """Formats for weights asked for as `dtype`; `InvalidSpec` for a precision this engine does not know."""
    if dtype == "fp32":
        return Compute("fp32", "fp32", "fp32", "fp32 as asked")
    if dtype != "bf16":
        raise InvalidSpec(f"precision {dtype!r} is not supported; supported: {', '.join(PRECISIONS)}", field="dtype")
    hardware = [flag for flag in _BF16_FLAGS if flag in features.flags]
    if hardware:
        return Compute("bf16", "bf16", "bf16", f"CPU multiplies bf16 in hardware ({hardware[0]})")
    return Compute("bf16", "fp32", "bf16", "CPU has no bf16 products: bf16 weights are held and multiplied in fp32")
