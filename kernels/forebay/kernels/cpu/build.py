"""Compiles the C library, once for each instruction set; standard library only.

Called by the wheel's build hook and by the setup script, so it must not import torch or anything of ours. The result
depends on the sources and the compiler, never on the build machine's CPU. A stamp beside the libraries makes a second
call cheap: it compiles again only when a source, this file or the compiler changed.
"""

import hashlib
import platform
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLAGS = (
    *("-std=c17", "-O3", "-fPIC", "-shared", "-fopenmp", "-Wall", "-Wextra", "-Wno-psabi"),
    # Not -ffast-math: it would fold away the rounding inside vf_exp.
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)
# avx512_bf16 is not here: the one file that uses it asks for it by itself, and is called only where the CPU has it.
VARIANT_FLAGS = {
    "v3": ("-march=x86-64-v3",),
    "v4": ("-march=x86-64-v4", "-mavx512vnni", "-mprefer-vector-width=512"),
}
STAMP = "build.stamp"


def library_name(variant: str) -> str:
    """File name of a variant's library, in the folder of this package."""
    return f"_{variant}.so"


def sources(folder: Path = HERE) -> list[Path]:
    """All C files, in a stable order."""
    return sorted(folder.glob("*/*.c"))


def find_compiler() -> str | None:
    """Path of a C compiler, or None."""
    return next((found for found in map(shutil.which, ("cc", "gcc")) if found), None)


def reason_against_building() -> str | None:
    """Why this machine cannot build the library; None when it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"built for Linux on x86-64 only, this is {sys.platform} on {platform.machine()}"
    if find_compiler() is None:
        return "no C compiler (cc or gcc) on PATH"
    return None


def fingerprint(folder: Path, compiler: str) -> str:
    """Changes when the libraries have to be compiled again."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    parts = [version.encode(), Path(__file__).read_bytes()]
    parts += [file.read_bytes() for file in [*sources(folder), *sorted(folder.glob("*/*.h"))]]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def compile_library(variant: str, out: Path, folder: Path = HERE, extra: tuple[str, ...] = ()) -> str | None:
    """Compile one variant to `out`; None, or what the compiler said when it failed."""
    compiler = find_compiler() or "cc"
    argv = [compiler, *FLAGS, *VARIANT_FLAGS[variant], *extra, f"-I{folder / 'common'}"]
    argv += [*map(str, sources(folder)), "-lm", "-o", str(out)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"{' '.join(argv[:1])} failed: {done.stderr.strip()[-2000:]}"


def build(folder: Path = HERE) -> str | None:
    """Bring the libraries in `folder` up to date; None, or the reason why there are none now."""
    reason = reason_against_building()
    compiler = find_compiler()
    if reason is not None or compiler is None:
        return reason
    stamp, wanted = folder / STAMP, fingerprint(folder, compiler)
    libraries = [folder / library_name(variant) for variant in VARIANT_FLAGS]
    current = stamp.exists() and stamp.read_text(encoding="utf-8") == wanted
    if current and all(library.exists() for library in libraries):
        return None
    stamp.unlink(missing_ok=True)
    for variant, library in zip(VARIANT_FLAGS, libraries, strict=True):
        # Replaced in one go: a process that has the old file mapped keeps it.
        fresh = library.with_suffix(".new")
        problem = compile_library(variant, fresh, folder)
        if problem is not None:
            return problem
        fresh.replace(library)
    stamp.write_text(wanted, encoding="utf-8")
    return None


if __name__ == "__main__":
    sys.exit(build())
