"""The layout rules that no linter knows: namespace folders stay open, the repository names no machine."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "folder", ["engine", "operator", "kernels", "engine/forebay", "operator/forebay", "kernels/forebay"]
)
def test_a_namespace_folder_has_no_init(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_python_starts_in_the_root_with_the_standard_operator_module() -> None:
    argv = [sys.executable, "-c", "import operator; print(operator.add(1, 1))"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "2", done.stderr


def test_lock_files_name_no_host() -> None:
    for lock in sorted((ROOT / "locks").glob("*.txt")):
        assert "://" not in lock.read_text(encoding="utf-8"), lock


def test_operator_and_router_locks_carry_no_torch() -> None:
    for name in ("operator", "router"):
        names = {
            line.split("==")[0] for line in (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        }
        assert not names & {"torch", "triton", "numpy", "transformers"}


def test_no_lock_carries_the_accelerator_libraries_of_the_default_torch_build() -> None:
    for lock in sorted((ROOT / "locks").glob("*.txt")):
        assert "nvidia-" not in lock.read_text(encoding="utf-8"), lock
