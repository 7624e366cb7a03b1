"""Foreign clients and the environment are touched in one module each."""

import ast
from pathlib import Path

import pytest

import forebay.operator

PACKAGE = Path(forebay.operator.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Top-level names of all imports of a module."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize(("library", "home"), [("kopf", "main.py"), ("kubernetes", "kube.py"), ("os", "config.py")])
def test_a_library_is_imported_in_its_one_module(library: str, home: str) -> None:
    assert [path.name for path in MODULES if library in imported(path)] == [home]
