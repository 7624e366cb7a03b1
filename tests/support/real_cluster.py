"""The cluster as tests see it."""

import subprocess
from dataclasses import dataclass

from deploy import Images, Target


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster with Forebay installed."""

    target: Target
    images: Images

    def kubectl(self, *argv: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl against the cluster."""
        return self.target.kubectl(*argv, stdin=stdin, check=check)
