"""The images of this checkout: built when their content changed, imported into the local cluster when it lacks them."""

import json
import subprocess
import sys
from pathlib import Path

from deploy import ROOT, Images

RECORD = ROOT / ".cache" / "images.json"


class ImagesFailed(Exception):
    """An image could not be built or imported; the message carries the output."""


def _script(*argv: str) -> None:
    done = subprocess.run([sys.executable, *argv], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ImagesFailed(f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout}{done.stderr}")


def _record() -> dict[str, dict[str, str]]:
    record: dict[str, dict[str, str]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def build_images() -> Images:
    """Build what changed and return the references as a cluster knows them."""
    _script(str(Path("hack") / "images" / "build.py"))
    references = {name: entry["reference"] for name, entry in _record().items()}
    return Images(references["engine"], references["operator"], references["router"], references["model"])


def import_images() -> None:
    """Put the built images into the local cluster's node."""
    archives = [entry["archive"] for _, entry in sorted(_record().items())]
    _script(str(Path("hack") / "cluster" / "images.py"), "import", *archives)
