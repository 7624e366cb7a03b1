"""Everything that CI runs, in order of cost: checks, tests without a cluster, wire tests, then a real Kubernetes.

Each stage prints one line with its time; the first failing stage ends the run with its exit code.
"""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = (sys.executable, "-m", "pytest", "tests")


@dataclass(frozen=True, slots=True)
class Stage:
    """One command of the run; `name` is what its line says."""

    name: str
    argv: tuple[str, ...]


STAGES = (
    Stage("checks", (sys.executable, "hack/check.py")),
    Stage("tests without a cluster", (*PYTEST, "-m", "not cluster and not wire")),
    Stage("tests over sockets with a real model", (*PYTEST, "-m", "wire")),
    Stage("system packages", (sys.executable, "hack/setup.py", "system")),
    Stage("Kubernetes binaries", (sys.executable, "hack/cluster/tools.py")),
    Stage("images", (sys.executable, "hack/images/build.py")),
    Stage("tests in a real cluster", (*PYTEST, "-m", "cluster")),
)


def main() -> int:
    """Run the stages; the exit code is that of the first one that failed, else 0."""
    begin = time.monotonic()
    for stage in STAGES:
        started = time.monotonic()
        print(f"== {stage.name}", flush=True)
        code = subprocess.run(stage.argv, cwd=ROOT).returncode
        print(
            f"== {stage.name}: {'ok' if code == 0 else f'failed with {code}'} in {time.monotonic() - started:.0f} s",
            flush=True,
        )
        if code != 0:
            return code
    print(f"== all green in {time.monotonic() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
