"""Kubernetes objects by way of kubectl.

Arguments are passed as lists, never through a shell. What kubectl says on an error is passed on as it is.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Json = Mapping[str, Any]


class CommandFailed(Exception):
    """A command that cannot go on; the message is for the user."""


class Cluster(Protocol):
    """What the commands need of a cluster."""

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """An object of the namespace (or of the cluster, for cluster-scoped kinds), None when it does not exist."""

    def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Objects of a kind in the namespace."""

    def create(self, document: Json, *, dry_run: bool) -> dict[str, Any]:
        """Create an object; `dry_run` lets the API server check it and keeps nothing."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with the user's own configuration; `namespace` None means the context's."""

    namespace: str | None = None
    context: str | None = None
    timeout_s: float = 30.0

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """See `Cluster`."""
        text = self._run("get", kind, name, "--ignore-not-found", "-o", "json")
        return json.loads(text) if text.strip() else None

    def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """See `Cluster`."""
        wanted = ["-l", selector] if selector else []
        items: list[dict[str, Any]] = json.loads(self._run("get", kind, *wanted, "-o", "json"))["items"]
        return items

    def create(self, document: Json, *, dry_run: bool) -> dict[str, Any]:
        """See `Cluster`."""
        extra = ["--dry-run=server"] if dry_run else []
        created: dict[str, Any] = json.loads(
            self._run("create", "-f", "-", *extra, "-o", "json", stdin=json.dumps(document))
        )
        return created

    def _run(self, *argv: str, stdin: str | None = None) -> str:
        where = [f"--namespace={self.namespace}"] if self.namespace else []
        where += [f"--context={self.context}"] if self.context else []
        command: Sequence[str] = ["kubectl", *argv, *where, f"--request-timeout={self.timeout_s:.0f}s"]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise CommandFailed("kubectl is not on the PATH; install it and log in to a cluster") from error
        if done.returncode != 0:
            raise CommandFailed(done.stderr.strip() or f"kubectl {argv[0]} ended with {done.returncode}")
        return done.stdout
