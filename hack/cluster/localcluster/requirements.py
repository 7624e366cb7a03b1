"""What the machine must bring: root, and the programs of a few Debian packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from localcluster.configs import CNI_FOLDERS
from localcluster.stages import stage

PACKAGE_LIST = Path(__file__).resolve().parent.parent / "packages.txt"
PROGRAMS = ("runc", "iptables", "ip", "conntrack", "openssl", "nsenter", "unshare", "mount")


def missing() -> list[str]:
    """The needed programs that are not there."""
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    absent = [program for program in PROGRAMS if shutil.which(program, path=search) is None]
    if not any((Path(folder) / "ptp").exists() for folder in CNI_FOLDERS):
        absent.append("CNI plugins")
    return absent


def packages() -> list[str]:
    """The Debian packages of `packages.txt`."""
    lines = PACKAGE_LIST.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def ensure() -> None:
    """Installs what is missing where apt can, else ends the program and says what to install."""
    if os.geteuid() != 0:
        sys.exit("the cluster needs root: it makes network namespaces, mounts and cgroups")
    absent = missing()
    if not absent:
        return
    if shutil.which("apt-get") is None:
        sys.exit(f"missing: {', '.join(absent)}. Install what these Debian packages hold: {' '.join(packages())}")
    with stage(f"install packages for {', '.join(absent)}"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages()]):
            subprocess.run(["apt-get", "--quiet", "--quiet", *command], check=True, env=environment)
    if absent := missing():
        sys.exit(f"still missing after the installation: {', '.join(absent)}")
