"""The recorded answers that the fake API server is held against are those of this real one."""

import asyncio
from pathlib import Path

import pytest

from api_script import play
from forebay.operator.kube import KubeCluster, load_configuration
from real_cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

RECORDED = Path(__file__).parents[1] / "unit" / "fake_cluster" / "recorded.txt"


async def record(kubeconfig: str, namespace: str) -> list[str]:
    """The script's lines, played by the operator's own client."""
    client = KubeCluster(await load_configuration(kubeconfig), lambda _verb, _resource, _code: None)
    try:
        return await play(client, namespace)
    finally:
        await client.close()


def test_the_real_api_server_still_answers_as_recorded(cluster: Cluster, namespace: str) -> None:
    kubeconfig = cluster.target.run("bash", "-c", "echo $KUBECONFIG").stdout.strip()
    lines = asyncio.run(record(kubeconfig, namespace))
    expected = RECORDED.read_text(encoding="utf-8").splitlines()
    assert [line.replace(namespace, "NAMESPACE") for line in lines] == expected
