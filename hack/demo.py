"""`make demo`: from nothing to a real model that answers through a real Kubernetes, with the time of each stage.

Uses the local cluster of `hack/cluster`, or the cluster of KUBECONFIG with images pushed to REGISTRY when both are set.
Run it again and it starts from what is there. `make cluster-down` removes the local cluster.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from openai import OpenAI

from deploy import (
    ROOT,
    Images,
    Target,
    create_namespace,
    external_target,
    install_charts,
    is_external,
    local_target,
    port_forward,
    quickstart_documents,
    wait_for_condition,
)
from image_store import build_images, import_images

NAMESPACE = "demo"
DEPLOYMENT = "chat"
QUESTION = "What is the capital of France? Answer in one short sentence."


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Print one line with the time that the block took."""
    begin = time.monotonic()
    yield
    print(f"demo: {name} in {time.monotonic() - begin:.1f} s", flush=True)


def hack(script: str, *argv: str) -> None:
    """Run one of the project's scripts and stop the demo when it fails."""
    code = subprocess.run([sys.executable, str(ROOT / "hack" / script), *argv], cwd=ROOT).returncode
    if code != 0:
        sys.exit(code)


def prepare_local() -> tuple[Target, Images]:
    """Tools, images and a running local cluster that knows the images."""
    with stage("system packages are there"):
        hack("setup.py", "system")
    with stage("Kubernetes is built"):
        hack("cluster/tools.py")
    with stage("images are built"):
        images = build_images()
    with stage("Kubernetes is up"):
        hack("cluster/up.py")
    with stage("images are in the cluster"):
        import_images()
    return local_target(), images


def prepare_external() -> tuple[Target, Images]:
    """Images in the registry of REGISTRY for the cluster of KUBECONFIG."""
    with stage(f"images are pushed to {os.environ['REGISTRY']}"):
        images = build_images()
    return external_target(), images


def ask(base_url: str) -> str:
    """One streamed chat completion by the official client; returns the whole answer."""
    client = OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0, timeout=120)
    stream = client.chat.completions.create(
        model=DEPLOYMENT,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=48,
        stream=True,
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def main() -> None:
    """Run the demo; any failure ends it with a non-zero exit code and what kubectl knows."""
    begin = time.monotonic()
    target, images = prepare_external() if is_external() else prepare_local()
    with stage("charts are installed"):
        install_charts(target, images)
    with stage("resources are applied and the model is servable"):
        create_namespace(target, NAMESPACE)
        target.apply(quickstart_documents(images), NAMESPACE)
        wait_for_condition(target, NAMESPACE, DEPLOYMENT, "Servable", deadline_s=600)
    with stage("the model answered"), port_forward(target, NAMESPACE, DEPLOYMENT) as base_url:
        answer = ask(base_url)
    print(target.kubectl("get", "modeldeployment", "-n", NAMESPACE).stdout, end="")
    print(f"question: {QUESTION}\nanswer:   {answer.strip()}")
    print(f"demo: done in {time.monotonic() - begin:.0f} s", flush=True)
    if not answer.strip():
        sys.exit("the model's answer was empty")


if __name__ == "__main__":
    main()
