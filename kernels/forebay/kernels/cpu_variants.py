"""Which variant of the C library a CPU can run, by its flags and what was built; without torch and without loading it.

`v4` needs AVX-512 F, BW, VL, DQ, CD and VNNI (avx512_bf16 is used where the CPU has it); `v3` needs AVX2, FMA and F16C.
The module lies outside the `cpu` package because importing that package imports torch, which a process that only
resolves a configuration must not pay for.
"""

from pathlib import Path
from typing import Final

LIBRARIES: Final = Path(__file__).resolve().parent / "cpu"
NEEDED_FLAGS: Final = {
    "v4": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd", "avx512_vnni"}),
    "v3": frozenset({"avx2", "fma", "f16c", "bmi2"}),
}


def runnable_variants(flags: frozenset[str]) -> tuple[str, ...]:
    """Variants that a CPU with `flags` can run, best first."""
    return tuple(variant for variant, needed in NEEDED_FLAGS.items() if needed <= flags)


def library_path(variant: str) -> Path:
    """Where the build puts a variant's library."""
    return LIBRARIES / f"_{variant}.so"


def problem(flags: frozenset[str]) -> str:
    """Why no library can serve a CPU with `flags`; empty when one can."""
    runnable = runnable_variants(flags)
    if not runnable:
        return "the CPU has neither AVX2 with FMA and F16C nor AVX-512 with VNNI"
    if not library_path(runnable[0]).exists():
        return f"{library_path(runnable[0]).name} was not built with this installation (a C compiler builds it)"
    return ""
