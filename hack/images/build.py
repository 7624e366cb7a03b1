"""`make images`: builds the images and prints the reference and the archive of each. See `--help`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HACK = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    sys.path[:0] = [str(HACK / "images"), str(HACK / "cluster"), str(HACK)]
    runpy.run_module("imagebuild", run_name="__main__", alter_sys=True)
