"""The base image: `python:3.11-slim-bookworm`, or its stand-in for a machine that reaches no registry.

The stand-in is a Debian root file system by mmdebstrap with Debian's Python 3.11, plus pip from its
wheel. It is made once; its key is this file's recipe, so a security update of Debian comes in by a new
`RELEASE`, or by deleting the image from the cache.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from imagebuild.builders import Buildah, Builder, BuildError
from imagebuild.images import IMAGES
from localcluster.stages import stage
from setup import find_uv

RELEASE = "1"
SUITE = "bookworm"
PACKAGES = ("python3", "python-is-python3", "ca-certificates", "libstdc++6", "usr-is-merged")
PIP = "pip==25.3"
SITE_PACKAGES = "/usr/local/lib/python3.11/dist-packages"
EXCLUDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
# `usrmerge` converts a system with separate /bin and /usr/bin and needs all of Perl, 50 MB. This one starts merged.
MERGED_USR = (
    "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
    '--setup-hook=printf "Package: usrmerge\\nPin: version *\\nPin-Priority: -1\\n" > "$1/etc/apt/preferences.d/base"',
)
HOOKS = (
    # The byte code comes back on demand while building, and the images bring their own.
    'find "$1/usr" -name __pycache__ -prune -exec rm -rf {} +',
    'rm -rf "$1"/var/cache/* "$1"/var/log/* "$1"/usr/lib/python3.11/ensurepip "$1"/usr/lib/python3.11/idlelib',
    'rm -rf "$1"/usr/lib/python3.11/pydoc_data "$1"/usr/lib/python3.11/lib2to3 "$1"/etc/apt/preferences.d/base',
)


def base_reference(builder: Builder) -> str:
    """The reference of the base image, built first when it is the stand-in and not there yet.

    `FOREBAY_BASE_IMAGE` names another base with Python 3.11 and pip.
    """
    if configured := os.environ.get("FOREBAY_BASE_IMAGE"):
        return configured
    if not isinstance(builder, Buildah):
        return "python:3.11-slim-bookworm"
    dockerfile = IMAGES / "Dockerfile.base"
    recipe = (RELEASE, SUITE, PACKAGES, PIP, EXCLUDED, MERGED_USR, HOOKS, dockerfile.read_text(encoding="utf-8"))
    reference = f"forebay.dev/base:{hashlib.sha256(repr(recipe).encode()).hexdigest()[:12]}"
    if not builder.has(reference):
        with stage("base image"), tempfile.TemporaryDirectory() as folder:
            _make_root_file_system(Path(folder))
            builder.build(Path(folder), dockerfile, reference, {}, {})
    return reference


def _make_root_file_system(folder: Path) -> None:
    pip = folder / "pip"
    install = [find_uv(), "pip", "install", "--quiet", "--no-deps", "--target", str(pip), PIP]
    command = ["mmdebstrap", "--quiet", "--variant=essential", "--mode=root", f"--include={','.join(PACKAGES)}"]
    command += MERGED_USR
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED]
    command += [f"--customize-hook={hook}" for hook in (*HOOKS, f'cp -r "{pip}/pip" "$1{SITE_PACKAGES}/"')]
    command += [SUITE, str(folder / "rootfs.tar")]
    for step in (install, command):
        done = subprocess.run(step, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise BuildError(f"{step[0]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
