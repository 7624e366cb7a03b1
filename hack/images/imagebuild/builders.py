"""The two programs that can build a Dockerfile, behind one interface."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

# What a build behind a proxy with its own certificate needs, mounted read-only when the machine has it.
MACHINE_FILES = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


class BuildError(Exception):
    """A build, save or push failed; the text holds the end of the program's output."""


class Builder(Protocol):
    """Builds, keeps and hands out images by reference."""

    def has(self, reference: str) -> bool:
        """True when the image is in the builder's own storage."""

    def build(
        self, context: Path, dockerfile: Path, reference: str, arguments: Mapping[str, str], mounts: Mapping[str, str]
    ) -> None:
        """Builds the Dockerfile and names the result. `mounts` maps host paths to paths seen by RUN."""

    def save(self, reference: str, archive: Path) -> None:
        """Writes the image as an OCI archive."""

    def forget(self, reference: str) -> None:
        """Drops the image and the layers that no other image needs. A missing image is fine."""

    def push(self, archive: Path, reference: str) -> None:
        """Pushes an archive written by `save` to the registry in `reference`."""


class Buildah:
    """Buildah as root without a daemon, its storage in the user's cache."""

    def __init__(self, storage: Path) -> None:
        """`storage` is kept between runs: it holds the layers that make a rebuild fast."""
        self._command = [
            "buildah",
            f"--root={storage / 'root'}",
            f"--runroot={storage / 'run'}",
            "--storage-driver=overlay",
        ]

    def has(self, reference: str) -> bool:
        """See `Builder`."""
        found = subprocess.run([*self._command, "inspect", reference], check=False, capture_output=True)
        return found.returncode == 0

    def build(
        self, context: Path, dockerfile: Path, reference: str, arguments: Mapping[str, str], mounts: Mapping[str, str]
    ) -> None:
        """See `Builder`. Runs in the host's network and in a chroot, which needs no privileges of a daemon."""
        command = [*self._command, "bud", "--isolation=chroot", "--network=host", "--layers", f"--tag={reference}"]
        command += [f"--build-arg={name}={value}" for name, value in arguments.items()]
        machine = {path: path for path in MACHINE_FILES if Path(path).exists()}
        command += [f"--volume={source}:{target}:ro" for source, target in {**machine, **mounts}.items()]
        command += os.environ.get("FOREBAY_BUILD_OPTIONS", "").split()
        _run([*command, f"--file={dockerfile}", str(context)])

    def save(self, reference: str, archive: Path) -> None:
        """See `Builder`. zstd at its fastest: half the time of gzip, and smaller."""
        compression = ["--compression-format=zstd", "--compression-level=1"]
        _run([*self._command, "push", *compression, reference, f"oci-archive:{archive}:{reference}"])

    def forget(self, reference: str) -> None:
        """See `Builder`."""
        subprocess.run([*self._command, "rmi", reference], check=False, capture_output=True)

    def push(self, archive: Path, reference: str) -> None:
        """See `Builder`."""
        pulled = _run([*self._command, "pull", "--quiet", f"oci-archive:{archive}"]).strip().splitlines()[-1]
        # As docker does it: a registry on this machine may speak plain HTTP.
        is_local = reference.partition("/")[0].partition(":")[0] in {"localhost", "127.0.0.1"}
        _run([*self._command, "push", f"--tls-verify={str(not is_local).lower()}", pulled, f"docker://{reference}"])


class Docker:
    """A docker daemon, release 25 or later: its archives are OCI archives."""

    def has(self, reference: str) -> bool:
        """See `Builder`."""
        found = subprocess.run(["docker", "image", "inspect", reference], check=False, capture_output=True)
        return found.returncode == 0

    def build(
        self, context: Path, dockerfile: Path, reference: str, arguments: Mapping[str, str], mounts: Mapping[str, str]
    ) -> None:
        """See `Builder`. The daemon may be elsewhere, so it can mount nothing of this machine."""
        if mounts:
            raise BuildError(f"docker cannot mount {', '.join(mounts)} into a build")
        options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        options += os.environ.get("FOREBAY_BUILD_OPTIONS", "").split()
        _run(["docker", "build", *options, f"--tag={reference}", f"--file={dockerfile}", str(context)])

    def save(self, reference: str, archive: Path) -> None:
        """See `Builder`."""
        _run(["docker", "save", f"--output={archive}", reference])

    def forget(self, reference: str) -> None:
        """See `Builder`."""
        subprocess.run(["docker", "image", "rm", reference], check=False, capture_output=True)

    def push(self, archive: Path, reference: str) -> None:
        """See `Builder`."""
        loaded = _run(["docker", "load", "--quiet", f"--input={archive}"]).rpartition("Loaded image: ")[2].strip()
        _run(["docker", "tag", loaded, reference])
        _run(["docker", "push", "--quiet", reference])


def find_builder(storage: Path) -> Builder:
    """Buildah when it is there, else docker when its daemon answers. Raises BuildError when neither is."""
    if shutil.which("buildah"):
        return Buildah(storage)
    if shutil.which("docker") and subprocess.run(["docker", "info"], check=False, capture_output=True).returncode == 0:
        return Docker()
    raise BuildError("no program that builds images: install buildah (as root), or start a docker daemon")


def _run(command: list[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise BuildError(f"{' '.join(command[:1])} ended with {done.returncode}:\n{tail}")
    return done.stdout
