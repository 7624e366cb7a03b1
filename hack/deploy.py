"""Forebay on a cluster: charts, images and resources, driven as a user would, by kubectl and helm.

Used by `make demo` and by the tests in `tests/cluster`. A `Target` says which cluster: the local one of `hack/cluster`,
or the one of KUBECONFIG with images pushed to REGISTRY.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SHELL = ROOT / "hack" / "cluster" / "shell"
SYSTEM_NAMESPACE = "forebay-system"
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
POLL_S = 0.5


class CommandFailed(Exception):
    """A kubectl or helm command that failed; the message carries its output."""


@dataclass(frozen=True, slots=True)
class Images:
    """References of the images as the cluster knows them."""

    engine: str
    operator: str
    router: str
    model: str


@dataclass(frozen=True, slots=True)
class Target:
    """One cluster. `prefix` comes before every command: the local cluster's shell, or nothing."""

    prefix: tuple[str, ...]

    def run(self, *argv: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command with the cluster's KUBECONFIG; raises `CommandFailed` with its output."""
        done = subprocess.run([*self.prefix, *argv], input=stdin, cwd=ROOT, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise CommandFailed(f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def kubectl(self, *argv: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl."""
        return self.run("kubectl", *argv, stdin=stdin, check=check)

    def helm(self, *argv: str) -> str:
        """Run helm and return what it printed."""
        return self.run("helm", *argv).stdout

    def get(self, *argv: str) -> Any:
        """`kubectl get ... -o json`, parsed."""
        return json.loads(self.kubectl("get", *argv, "-o", "json").stdout)

    def apply(self, documents: Sequence[Mapping[str, Any]], namespace: str) -> None:
        """`kubectl apply` of several documents."""
        self.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(documents, sort_keys=False))


def local_target() -> Target:
    """The cluster of `hack/cluster`."""
    return Target((str(SHELL),))


def external_target() -> Target:
    """The cluster of KUBECONFIG."""
    return Target(())


def is_external() -> bool:
    """Whether KUBECONFIG and REGISTRY name somebody else's cluster."""
    return bool(os.environ.get("KUBECONFIG")) and bool(os.environ.get("REGISTRY"))


def create_namespace(target: Target, name: str) -> None:
    """A namespace that admits restricted pods only."""
    target.kubectl("create", "namespace", name, check=False)
    target.kubectl("label", "namespace", name, RESTRICTED, "--overwrite")


def split_image(reference: str) -> tuple[str, str]:
    """Repository and tag of an image reference."""
    repository, _, tag = reference.rpartition(":")
    return repository, tag


def install_charts(target: Target, images: Images, *extra: str) -> None:
    """Install or upgrade the CRDs and the operator, and wait until the operator is available."""
    create_namespace(target, SYSTEM_NAMESPACE)
    target.helm("upgrade", "--install", "forebay-crds", "charts/forebay-crds", "-n", SYSTEM_NAMESPACE, "--wait")
    install_operator(target, images, *extra)


def install_operator(target: Target, images: Images, *extra: str) -> None:
    """Install or upgrade the operator alone."""
    values = [
        option
        for name, reference in (("operator", images.operator), ("router", images.router))
        for repository, tag in [split_image(reference)]
        for option in ("--set", f"images.{name}.repository={repository}", "--set-string", f"images.{name}.tag={tag}")
    ]
    options = ["-n", SYSTEM_NAMESPACE, "--wait", "--timeout", "3m", *values, *extra]
    target.helm("upgrade", "--install", "forebay", "charts/forebay", *options)


def release_document(images: Images, name: str = "forebay-0.1.0") -> dict[str, Any]:
    """The EngineRelease that the engine says of itself."""
    argv = [sys.executable, "-m", "forebay.engine", "describe", "--image", images.engine, "--name", name]
    printed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    document = yaml.safe_load(printed)
    if not isinstance(document, dict):
        raise CommandFailed(f"describe printed no resource:\n{printed}")
    return document


def quickstart_documents(images: Images) -> list[dict[str, Any]]:
    """`examples/quickstart.yaml` with the images of this build, led by the EngineRelease."""
    text = (ROOT / "examples" / "quickstart.yaml").read_text(encoding="utf-8")
    documents = [document for document in yaml.safe_load_all(text) if document["kind"] != "EngineRelease"]
    for document in documents:
        if document["kind"] == "Model":
            for checkpoint in document["spec"]["checkpoints"]:
                checkpoint["source"]["image"]["reference"] = images.model
    return [release_document(images), *documents]


def wait_for_condition(target: Target, namespace: str, name: str, condition: str, deadline_s: float) -> None:
    """Wait until a ModelDeployment has the condition for its newest generation, else fail with its status."""
    end = time.monotonic() + deadline_s
    while True:
        found = target.get("modeldeployment", name, "-n", namespace)
        if _holds(found, condition):
            return
        if time.monotonic() > end:
            raise CommandFailed(
                f"{name} is not {condition} after {deadline_s:.0f} s: {json.dumps(found.get('status'), indent=1)}\n"
                + target.kubectl("get", "pods,events", "-n", namespace, "-o", "wide", check=False).stdout
            )
        time.sleep(POLL_S)


def _holds(deployment: Mapping[str, Any], condition: str) -> bool:
    return any(
        entry["type"] == condition
        and entry["status"] == "True"
        and entry.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
        for entry in deployment.get("status", {}).get("conditions", [])
    )


@contextmanager
def port_forward(target: Target, namespace: str, service: str) -> Iterator[str]:
    """A base URL on loopback that reaches a Service through the API server."""
    argv = [*target.prefix, "kubectl", "port-forward", "-n", namespace, f"service/{service}", ":80"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if "127.0.0.1:" not in line:
                raise CommandFailed(f"kubectl port-forward said {line!r}")
            yield f"http://127.0.0.1:{line.split('127.0.0.1:')[1].split()[0]}"
        finally:
            process.terminate()
