"""The pure modules of the router touch no clock, no chance, no socket and no environment."""

import ast
from pathlib import Path

import pytest

import forebay.router

ROUTER = Path(forebay.router.__path__[0])
PURE = (
    "answers",
    "body",
    "breaker",
    "framing",
    "heads",
    "leases",
    "phase",
    "policy",
    "relay",
    "retry",
    "slices",
    "split",
    "view",
)
FORBIDDEN = {"aiohttp", "asyncio", "httptools", "os", "random", "socket", "ssl", "threading", "time", "uuid", "uvloop"}


def imports(name: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROUTER / f"{name}.py").read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_imports_no_shell(name: str) -> None:
    for module in imports(name):
        assert module.split(".")[0] not in FORBIDDEN
        if module.startswith("forebay.router."):
            assert module.removeprefix("forebay.router.") in PURE


def test_the_environment_is_read_in_one_module() -> None:
    assert [path.stem for path in sorted(ROUTER.glob("*.py")) if "os" in imports(path.stem)] == ["config"]
