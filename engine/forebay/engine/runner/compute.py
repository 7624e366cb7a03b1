"""Which number formats and which kernels a CPU should compute with, from its feature flags.

bf16 matrix products of torch are fast only with hardware support (avx512_bf16, AMX, Arm bf16): elsewhere torch widens
them at a tenth of the speed, so there the torch path holds matrices in fp32, at twice the memory. The cpu kernels widen
inside their own products and hold every format as it is. No torch here: configuration resolution asks before the core
process exists, and sends the answer to it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forebay.contract.errors import InvalidSpec
from forebay.kernels.cpu_variants import runnable_variants

PRECISIONS: Final = ("bf16", "fp32", "int8", "int4")
_BF16_FLAGS: Final = ("avx512_bf16", "amx_bf16", "bf16")


@dataclass(frozen=True, slots=True)
class CpuFeatures:
    """What /proc/cpuinfo says of the first CPU."""

    model_name: str
    flags: frozenset[str]


@dataclass(frozen=True, slots=True)
class Compute:
    """Formats of one engine.

    `values`: rounding of all weights when read. `weights`: what matrices are further rounded to (equal on both paths).
    `matmul`: how matrices are held and multiplied. `kv`: the cache. `kernels`: "cpu" (the C library) or "torch".
    """

    values: str
    weights: str
    matmul: str
    kv: str
    kernels: str
    batch_invariant: bool
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


def choose_compute(
    dtype: str,
    features: CpuFeatures,
    kernels: str = "torch",
    determinism: str = "default",
    cpu_problem: str = "",
) -> Compute:
    """Formats and kernels for weights asked for as `dtype`.

    `kernels` is auto, cpu or torch; `cpu_problem` says why the cpu kernels cannot serve here, empty when they can.
    Raises `InvalidSpec` that names the key when the combination cannot be had.
    """
    chosen = "torch" if kernels == "torch" or cpu_problem else "cpu"
    invariant = determinism == "batch_invariant"
    _refuse(dtype, kernels, cpu_problem, invariant and chosen == "torch")
    values = "bf16" if dtype == "bf16" else "fp32"
    kv = "fp32" if dtype == "fp32" else "bf16"
    matmul, how = (dtype, _cpu_kernels(features)) if chosen == "cpu" else _torch_matmul(dtype, features)
    if kernels == "auto" and chosen == "torch":
        how = f"{how}; torch serves: {cpu_problem}"
    return Compute(values, dtype, matmul, kv, chosen, invariant, f"{dtype}: {how}")


def _refuse(dtype: str, kernels: str, cpu_problem: str, invariant_on_torch: bool) -> None:
    if dtype not in PRECISIONS:
        raise InvalidSpec(f"precision {dtype!r} is not supported; supported: {', '.join(PRECISIONS)}", field="dtype")
    if kernels == "cpu" and cpu_problem:
        raise InvalidSpec(f"kernels cpu cannot serve here: {cpu_problem}; set auto or torch", field="kernels")
    if invariant_on_torch:
        raise InvalidSpec(
            "determinism batch_invariant holds only with the cpu kernels, "
            f"and here {cpu_problem or 'kernels is torch'}; set determinism to default",
            field="determinism",
        )


def _cpu_kernels(features: CpuFeatures) -> str:
    variant = next(iter(runnable_variants(features.flags)), "none")
    bf16 = " with avx512_bf16" if variant == "v4" and "avx512_bf16" in features.flags else ""
    return f"the cpu kernels, variant {variant}{bf16}, multiply it as it is"


def _torch_matmul(dtype: str, features: CpuFeatures) -> tuple[str, str]:
    if dtype == "fp32":
        return "fp32", "torch multiplies fp32"
    hardware = [flag for flag in _BF16_FLAGS if flag in features.flags]
    if hardware:
        return "bf16", f"torch multiplies bf16 in hardware ({hardware[0]})"
    return "fp32", "CPU has no bf16 products: torch holds and multiplies the weights in fp32"
