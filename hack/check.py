"""The project's static checks: format, lint, types, import contracts, size caps, dependencies, generated files.

`make check` runs everything; `python hack/check.py --paths DIR...` runs the per-file checks on a part of the tree.
Every check prints one line with its time; the exit code is the number of failed checks.
"""

import argparse
import ast
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
SOURCES = ("engine", "operator", "kernels", "hack", "tests")
FILE_CAP_LINES = 400
FUNCTION_CAP_LINES = 60
COMPLEXITY_CAP = 12
NAMESPACE_FOLDERS = ("engine", "operator", "kernels", "engine/forebay", "operator/forebay", "kernels/forebay")


@dataclass(frozen=True, slots=True)
class Check:
    """A named check that returns the problems it found, one line each."""

    name: str
    run: Callable[[Sequence[str]], list[str]]
    whole_tree_only: bool = False


def command(*argv: str) -> list[str]:
    """Run a tool in the repository root; its output is the list of problems when it fails."""
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return []
    return (done.stdout + done.stderr).strip().splitlines() or [f"{argv[0]} ended with {done.returncode}"]


def python_files(paths: Sequence[str]) -> Iterator[Path]:
    """All Python files under the given paths, in a stable order."""
    for path in paths:
        full = ROOT / path
        yield from [full] if full.is_file() else sorted(full.rglob("*.py"))


def size_caps(paths: Sequence[str]) -> list[str]:
    """Files over the line cap and functions over the function cap."""
    problems: list[str] = []
    for file in python_files(paths):
        text = file.read_text(encoding="utf-8")
        where = file.relative_to(ROOT)
        lines = text.count("\n")
        if lines > FILE_CAP_LINES:
            problems.append(f"{where}: {lines} lines, the cap is {FILE_CAP_LINES}; split it by noun")
        problems += [
            f"{where}:{node.lineno}: {node.name} has {length} lines, the cap is {FUNCTION_CAP_LINES}"
            for node, length in _functions(text)
            if length > FUNCTION_CAP_LINES
        ]
    return problems


def _functions(text: str) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node, node.end_lineno - node.lineno + 1


def complexity(paths: Sequence[str]) -> list[str]:
    """Functions over the cognitive-complexity cap."""
    return command(
        str(BIN / "complexipy"), *paths, "--max-complexity-allowed", str(COMPLEXITY_CAP), "--failed", "--quiet"
    )


def namespace_packages(_paths: Sequence[str]) -> list[str]:
    """No `__init__.py` where it would shadow the standard library's `operator` or close the namespace."""
    return [
        f"{folder}/__init__.py must not exist"
        for folder in NAMESPACE_FOLDERS
        if (ROOT / folder / "__init__.py").exists()
    ]


def lint(paths: Sequence[str]) -> list[str]:
    """Ruff's lint rules."""
    return command(str(BIN / "ruff"), "check", "--quiet", *paths)


def formatted(paths: Sequence[str]) -> list[str]:
    """Ruff's format."""
    return command(str(BIN / "ruff"), "format", "--check", "--quiet", *paths)


def types(paths: Sequence[str]) -> list[str]:
    """mypy in strict mode."""
    return command(str(BIN / "mypy"), "--no-error-summary", *paths)


def imports(_paths: Sequence[str]) -> list[str]:
    """Import contracts of the architecture."""
    return command(str(BIN / "lint-imports"), "--no-cache")


def dependencies(_paths: Sequence[str]) -> list[str]:
    """Unused and undeclared dependencies."""
    return command(str(BIN / "deptry"), "engine", "operator", "kernels")


def generated(_paths: Sequence[str]) -> list[str]:
    """CRDs, their chart copy and the field tables are what the models say."""
    return command(sys.executable, "-m", "forebay.api.crd", "--check")


CHECKS = (
    Check("format", formatted),
    Check("lint", lint),
    Check("types", types),
    Check("size caps", size_caps),
    Check("complexity", complexity),
    Check("namespace packages", namespace_packages),
    Check("import contracts", imports, whole_tree_only=True),
    Check("dependencies", dependencies, whole_tree_only=True),
    Check("generated files", generated, whole_tree_only=True),
)


def main() -> int:
    """Run the checks and return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paths", nargs="+", help="check these paths only, without the whole-tree checks")
    arguments = parser.parse_args()
    paths: Sequence[str] = arguments.paths or SOURCES
    failed = 0
    for check in CHECKS:
        if check.whole_tree_only and arguments.paths:
            continue
        begin = time.monotonic()
        problems = check.run(paths)
        failed += bool(problems)
        print(f"{'FAIL' if problems else 'ok':4}  {check.name}  {time.monotonic() - begin:.1f} s", flush=True)
        for line in problems:
            print(f"      {line}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
