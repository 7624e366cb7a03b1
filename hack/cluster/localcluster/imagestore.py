"""Brings image archives into the cluster's containerd, each content once.

The store is asked by reference and manifest digest, so an unchanged archive costs one question.
Called by `up` for the pause image and by `images.py` for everything else.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from localcluster.layout import Layout
from localcluster.ociarchive import read_images
from localcluster.stages import stage
from localcluster.toolchain import program_folder

NAMESPACE = "k8s.io"


def ctr(layout: Layout, *arguments: str) -> str:
    """Runs containerd's own client in the kubelet's namespace and returns what it prints.

    Raises RuntimeError with its message when it fails; on success its deprecation warnings are dropped.
    """
    command = [str(program_folder("containerd") / "ctr"), "-n", NAMESPACE, *arguments]
    environment = {**os.environ, "CONTAINERD_ADDRESS": str(layout.containerd_socket)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def stored_digests(layout: Layout) -> dict[str, str]:
    """The manifest digest of every image reference in the store."""
    rows = (line.split() for line in ctr(layout, "images", "list").splitlines()[1:])
    return {row[0]: row[2] for row in rows if len(row) > 2}


def import_archives(layout: Layout, archives: Sequence[Path]) -> None:
    """Imports each archive unless every image in it is stored already with the same digest."""
    stored = stored_digests(layout)
    for archive in archives:
        images = read_images(archive)
        if all(stored.get(image.reference) == image.digest for image in images):
            continue
        with stage(f"import {', '.join(image.reference for image in images)}"):
            ctr(layout, "images", "import", str(archive))
