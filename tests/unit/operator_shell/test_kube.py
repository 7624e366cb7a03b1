"""The API client against a small HTTP server that answers what it is told: paths, parameters, pages, errors, tokens."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import Configuration

from forebay.contract.errors import ApiConflict, ApiDenied, ApiGone, ApiThrottled, ForebayError
from forebay.contract.names import PATH_ROUTES
from forebay.contract.wire import RouterReport
from forebay.operator import kube
from forebay.operator.cluster import FOREBAY_API, ApplyRefused
from forebay.operator.kube import KubeCluster, RouterPorts


@dataclass
class Script:
    """Answers in order; the last one repeats."""

    answers: list[tuple[int, Any]] = field(default_factory=list)
    seen: list[tuple[str, str, dict[str, str], Any, str]] = field(default_factory=list)
    authorization: list[str | None] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    async def handle(self, request: web.Request) -> web.Response:
        text = await request.text()
        body = json.loads(text) if text else None
        self.seen.append((request.method, request.path, dict(request.query), body, request.content_type))
        self.authorization.append(request.headers.get("Authorization"))
        status, document = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(document, str):
            return web.Response(status=status, text=document, headers=self.headers)
        return web.json_response(document, status=status, headers=self.headers)


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def counted() -> list[tuple[str, str, str]]:
    return []


@pytest.fixture
async def cluster(script: Script, counted: list[tuple[str, str, str]]) -> AsyncIterator[KubeCluster]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", script.handle)
    async with TestServer(app) as server:
        configuration = Configuration(host=str(server.make_url("")).rstrip("/"))
        client = KubeCluster(configuration, lambda *parts: counted.append(parts))
        yield client
        await client.close()


OBJ = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "ns"}}


async def test_paths_of_core_grouped_and_cluster_scoped_resources(script: Script, cluster: KubeCluster) -> None:
    script.answers = [(200, OBJ)]
    await cluster.get("v1", "ConfigMap", "ns", "a")
    await cluster.get("apps/v1", "Deployment", "ns", "a")
    await cluster.get(FOREBAY_API, "GPUClass", None, "cpu")
    assert [path for _, path, *_ in script.seen] == [
        "/api/v1/namespaces/ns/configmaps/a",
        "/apis/apps/v1/namespaces/ns/deployments/a",
        "/apis/forebay.dev/v1alpha1/gpuclasses/cpu",
    ]


async def test_an_apply_is_a_patch_with_manager_and_force(script: Script, cluster: KubeCluster) -> None:
    script.answers = [(200, OBJ)]
    await cluster.apply(OBJ, "forebay/workload", force=True)
    expected = {"fieldManager": "forebay/workload", "force": "true"}
    assert script.seen == [
        ("PATCH", "/api/v1/namespaces/ns/configmaps/a", expected, OBJ, "application/apply-patch+yaml")
    ]


async def test_a_status_goes_to_the_subresource_with_the_version_it_was_made_from(
    script: Script, cluster: KubeCluster
) -> None:
    script.answers = [(200, OBJ)]
    await cluster.patch_status(FOREBAY_API, "ModelDeployment", "ns", "a", {"url": "x"}, "s", "17")
    method, path, _, body, _ = script.seen[0]
    assert (method, path) == ("PATCH", "/apis/forebay.dev/v1alpha1/namespaces/ns/modeldeployments/a/status")
    assert body["metadata"] == {"name": "a", "namespace": "ns", "resourceVersion": "17"}
    assert body["status"] == {"url": "x"}


async def test_a_delete_carries_the_uid_and_a_missing_object_is_fine(script: Script, cluster: KubeCluster) -> None:
    script.answers = [(404, {"message": "gone"})]
    await cluster.delete("v1", "ConfigMap", "ns", "a", "uid-1")
    assert script.seen[0][3] == {"propagationPolicy": "Background", "preconditions": {"uid": "uid-1"}}


async def test_a_list_is_read_in_pages_and_its_items_get_their_kind(script: Script, cluster: KubeCluster) -> None:
    item = {"metadata": {"name": "a", "managedFields": [{}]}}
    script.answers = [
        (200, {"metadata": {"continue": "token"}, "items": [item]}),
        (200, {"metadata": {}, "items": [item]}),
    ]
    found = await cluster.list("v1", "Pod", None, "a=b", "status.phase=Running")
    assert found == [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}] * 2
    assert [query.get("continue") for _, _, query, _, _ in script.seen] == [None, "token"]
    assert script.seen[0][1] == "/api/v1/pods"
    assert script.seen[0][2]["labelSelector"] == "a=b"
    assert script.seen[0][2]["fieldSelector"] == "status.phase=Running"


TERMINATING = {"message": "no", "details": {"causes": [{"reason": "NamespaceTerminating"}]}}


@pytest.mark.parametrize(
    ("status", "document", "error"),
    [
        (404, {"message": "no"}, ApiGone),
        (410, {"message": "no"}, ApiGone),
        (409, {"message": "no"}, ApiConflict),
        (401, {"message": "no"}, ApiDenied),
        (403, {"message": "no"}, ApiDenied),
        (403, TERMINATING, ApiGone),
        (400, {"message": "no"}, ApplyRefused),
        (422, {"message": "no"}, ApplyRefused),
        (429, {"message": "no"}, ApiThrottled),
        (500, {"message": "no"}, ApiThrottled),
        (503, "upstream is away", ApiThrottled),
        (200, "<html>a proxy's page</html>", ApiThrottled),
    ],
)
async def test_errors_are_mapped_once(
    script: Script, cluster: KubeCluster, status: int, document: Any, error: type[ForebayError]
) -> None:
    script.answers = [(status, document)]
    with pytest.raises(ForebayError) as caught:
        await cluster.apply(OBJ, "m", force=False)
    assert type(caught.value) is error


async def test_the_server_says_when_to_come_back(script: Script, cluster: KubeCluster) -> None:
    script.answers = [(429, {"message": "busy"})]
    script.headers = {"Retry-After": "17"}
    with pytest.raises(ApiThrottled) as caught:
        await cluster.list("v1", "Pod", None)
    assert caught.value.retry.after_s == 17.0


async def test_a_server_that_is_away_is_throttled_and_counted(counted: list[tuple[str, str, str]]) -> None:
    client = KubeCluster(Configuration(host="http://127.0.0.1:9"), lambda *parts: counted.append(parts))
    with pytest.raises(ApiThrottled):
        await client.get("v1", "ConfigMap", "ns", "a")
    await client.close()
    assert counted == [("get", "configmaps", "error")]


async def test_every_request_is_counted_by_verb_resource_and_status(
    script: Script, cluster: KubeCluster, counted: list[tuple[str, str, str]]
) -> None:
    script.answers = [(201, OBJ), (409, {"message": "no"})]
    await cluster.create(OBJ)
    with pytest.raises(ApiConflict):
        await cluster.replace(OBJ)
    assert counted == [("create", "configmaps", "201"), ("update", "configmaps", "409")]


async def test_a_rotated_token_is_used_without_a_restart(script: Script, cluster: KubeCluster) -> None:
    script.answers = [(200, OBJ)]
    tokens = iter(["bearer one", "bearer two"])

    def rotate(configuration: Configuration) -> None:
        configuration.api_key["BearerToken"] = next(tokens)

    cluster._configuration.refresh_api_key_hook = rotate
    await cluster.get("v1", "ConfigMap", "ns", "a")
    await cluster.get("v1", "ConfigMap", "ns", "a")
    assert script.authorization == ["bearer one", "bearer two"]


async def test_router_reports_are_read_and_silence_is_an_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    report = RouterReport(3, synced=True, endpoints=())

    async def routes(_: web.Request) -> web.Response:
        return web.json_response(report.to_json())

    app = web.Application()
    app.router.add_get(PATH_ROUTES, routes)
    async with TestServer(app) as server:
        monkeypatch.setattr(kube, "PORT_ROUTER_ADMIN", server.port)
        ports = RouterPorts()
        good, bad = await ports.read([("one", "127.0.0.1"), ("two", "127.0.0.9")])
        await ports.close()
    assert (good.pod, good.report) == ("one", report)
    assert (bad.pod, bad.report) == ("two", None)
    assert "no answer" in bad.error
