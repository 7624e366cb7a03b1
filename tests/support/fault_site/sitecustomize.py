"""Makes functions of a process under test raise, without a line for it in the product.

Python imports a module of this name at every start when its folder is on `PYTHONPATH`. `FOREBAY_TEST_FAULTS` is a
folder: while it holds a file named like a place below, that place raises. The wrapped functions are the product's own,
so a place that no longer exists fails the import of its module.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

PLACES = {
    "forebay.engine.runner.runner": ("runner", "StepRunner._execute"),
    "forebay.engine.text": ("tokenizer", "TextCodec.encode_chat", "detokenizer", "ByteDetokenizer.push"),
    "forebay.engine.structured.compile": ("grammar", "compile_source"),
    "forebay.engine.structured.store": ("store", "GrammarStore.open"),
}


class Injected(Exception):
    """An error that no code expects."""


def wrap(owner: Any, name: str, switch: Path) -> None:
    """Make `owner.name` raise while the switch exists."""
    function: Callable[..., Any] = getattr(owner, name)

    def failing(*arguments: Any, **named: Any) -> Any:
        if switch.exists():
            raise Injected(f"injected into {name}")
        return function(*arguments, **named)

    setattr(owner, name, failing)


class Loader(importlib.abc.Loader):
    """Runs the module as usual, then wraps its functions."""

    def __init__(self, inner: importlib.abc.Loader, faults: Path) -> None:
        self._inner = inner
        self._faults = faults

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As usual."""
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As usual, then wrap."""
        self._inner.exec_module(module)
        places = PLACES[module.__spec__.name if module.__spec__ else module.__name__]
        for switch, path in zip(places[::2], places[1::2], strict=True):
            *owners, name = path.split(".")
            owner: Any = module
            for part in owners:
                owner = getattr(owner, part)
            wrap(owner, name, self._faults / switch)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules with places as usual, and gives them the wrapping loader."""

    def __init__(self, faults: Path) -> None:
        self._faults = faults

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for every other module."""
        if fullname not in PLACES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader, self._faults)
        return spec


if folder := os.environ.get("FOREBAY_TEST_FAULTS"):
    sys.meta_path.insert(0, Finder(Path(folder)))
