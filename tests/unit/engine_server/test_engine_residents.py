"""Resident memory as the metrics report it."""

import os
from pathlib import Path

from forebay.engine.server.residents import PROCESSES, resident_bytes


def process(proc: Path, name: str, command: str, pages: int) -> Path:
    """A process of a made-up /proc."""
    folder = proc / name
    folder.mkdir()
    (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
    (folder / "statm").write_text(f"999 {pages} 1 1 0 1 0\n")
    return folder


def test_children_count_by_what_they_are_and_the_gone_count_nothing(tmp_path: Path) -> None:
    own = process(tmp_path, "self", "python -m forebay.engine serve", 3)
    process(tmp_path, "11", "python -m forebay.engine core --descriptor 5", 20)
    process(tmp_path, "12", "python -m forebay.engine.structured.worker", 7)
    process(tmp_path, "13", "python -m forebay.engine.structured.worker", 1)
    for task, children in (("1", "11 12 "), ("2", "13 14")):
        (own / "task" / task).mkdir(parents=True)
        (own / "task" / task / "children").write_text(children)
    page = os.sysconf("SC_PAGE_SIZE")
    assert resident_bytes(tmp_path) == {"api": 3 * page, "core": 20 * page, "compiler": 8 * page}


def test_this_process_has_memory() -> None:
    assert resident_bytes()["api"] > 1_000_000
    assert set(resident_bytes()) == set(PROCESSES)
