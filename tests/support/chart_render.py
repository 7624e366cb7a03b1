"""Renders the operator chart with the real Helm, for golden and permission tests."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "forebay"
EXPECTED = ROOT / "tests" / "golden" / "chart"
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "monitored": ("--set", "metrics.namespace=monitoring", "--set", "metrics.serviceMonitor.enabled=true"),
    "namespaced": ("--set", "watchNamespaces={team-a,team-b}", "--set", "replicas=2"),
}
"""Options of each rendering that is recorded in full."""

Doc = dict[str, Any]


class RenderFailed(AssertionError):
    """Helm refused; the message is what it printed."""


def find_helm() -> str | None:
    """The Helm of PATH, or the one that `make cluster-tools` built."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(os.environ.get("FOREBAY_CACHE") or Path(base) / "forebay")
    built = sorted(cache.glob("cluster-tools/helm-*/helm"))
    usable = [str(path) for path in built if path.is_file() and os.access(path, os.X_OK)]
    return shutil.which("helm") or (usable[0] if usable else None)


def render_text(helm: str, *options: str, release: str = "forebay", namespace: str = "forebay-system") -> str:
    """The manifests as Helm prints them."""
    argv = [helm, "template", release, str(CHART), "-n", namespace, "--kube-version", "1.36.0", *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RenderFailed(done.stderr)
    return done.stdout


def render(helm: str, *options: str, release: str = "forebay", namespace: str = "forebay-system") -> list[Doc]:
    """The manifests as documents."""
    text = render_text(helm, *options, release=release, namespace=namespace)
    return [doc for doc in yaml.safe_load_all(text) if doc]


def pick(docs: list[Doc], kind: str) -> list[Doc]:
    """The documents of a kind."""
    return [doc for doc in docs if doc["kind"] == kind]
