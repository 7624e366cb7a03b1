"""The one wheel that every application image takes, and where torch's wheel comes from."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from imagebuild.builders import Buildah, Builder, BuildError
from imagebuild.images import CHECKOUT
from setup import WHEELS, find_uv

WHEELS_IN_BUILD = "/wheels"


@dataclass(frozen=True)
class TorchSource:
    """Options for pip (None: the Dockerfile's own) and the mounts they need."""

    pip_options: str | None = None
    mounts: dict[str, str] = field(default_factory=dict)


def build_wheel(folder: Path) -> Path:
    """Builds the checkout's wheel into `folder`. The same sources give the same bytes."""
    command = [find_uv(), "build", "--quiet", "--wheel", "--out-dir", str(folder), str(CHECKOUT)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"the wheel does not build:\n{done.stderr[-3000:]}")
    return next(folder.glob("forebay-*.whl"))


def torch_source(builder: Builder) -> TorchSource:
    """The local wheel folder where there is one and the builder can mount it, else the package index."""
    if WHEELS.is_dir() and isinstance(builder, Buildah):
        return TorchSource(f"--find-links {WHEELS_IN_BUILD}", {str(WHEELS): WHEELS_IN_BUILD})
    return TorchSource()
