"""`Cluster` over the Kubernetes REST API, and the reader of router admin ports.

The maintained client supplies addresses, certificates and rotating tokens (in a cluster or from a kubeconfig); the few
requests the operator makes are written here on one aiohttp session, since generated model classes would cost more
memory than all else. Foreign errors are mapped to the taxonomy once, in `_mapped`. The only module that imports
`kubernetes`.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration

from forebay.contract.errors import (
    ApiConflict,
    ApiDenied,
    ApiGone,
    ApiThrottled,
    Bug,
    ForebayError,
    Incompatible,
    InvalidSpec,
    Retry,
    RetryKind,
)
from forebay.contract.names import PATH_ROUTES, PORT_ROUTER_ADMIN
from forebay.contract.wire import parse_router_report
from forebay.operator.cluster import ApplyRefused, Json, Resource, resource_of
from forebay.operator.snapshot import RouterObservation

REQUEST_TIMEOUT_S: Final = 30.0
PAGE_OBJECTS: Final = 500
ROUTER_TIMEOUT_S: Final = 1.0
MAX_ROUTER_REPORT_BYTES: Final = 4 << 20
APPLY_TYPE: Final = "application/apply-patch+yaml"

OnRequest = Callable[[str, str, str], None]
"""Called after each request with the RBAC verb, the plural resource name and the HTTP status or `error`."""


async def load_configuration(kubeconfig: str | None = None) -> Configuration:
    """Address and credentials: of the file given, else of the pod's service account, else of KUBECONFIG."""
    configuration = Configuration()
    if kubeconfig is None:
        try:
            kube_config.load_incluster_config(client_configuration=configuration)
        except kube_config.ConfigException:
            await kube_config.load_kube_config(client_configuration=configuration)
    else:
        await kube_config.load_kube_config(kubeconfig, client_configuration=configuration)
    return configuration


@dataclass(frozen=True, slots=True)
class Credentials:
    """Address and credentials of the API server, for other clients than ours; `authorization` is the header."""

    server: str
    ca_path: str | None
    ca_data: str | bytes | None
    verify_tls: bool
    authorization: str | None
    certificate_path: str | None
    key_path: str | None


async def credentials(configuration: Configuration) -> Credentials:
    """The current credentials of a configuration; tokens rotate, so ask again after a 401."""
    return Credentials(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=configuration.ca_cert_data,
        verify_tls=configuration.verify_ssl,
        authorization=await configuration.get_api_key_with_prefix("BearerToken"),
        certificate_path=configuration.cert_file,
        key_path=configuration.key_file,
    )


def tls_context(configuration: Configuration) -> ssl.SSLContext:
    """TLS settings of a configuration."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class KubeCluster:
    """`Cluster` on a real API server; close it when done."""

    def __init__(self, configuration: Configuration, on_request: OnRequest) -> None:
        self._configuration = configuration
        self._on_request = on_request
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls_context(configuration), limit=32),
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def get(self, api_version: str, kind: str, namespace: str | None, name: str) -> Json | None:
        """See `Cluster`."""
        resource = resource_of(api_version, kind)
        try:
            return await self._request("get", "GET", resource, _path(resource, namespace, name))
        except ApiGone:
            return None

    async def list(
        self, api_version: str, kind: str, namespace: str | None, label_selector: str = "", field_selector: str = ""
    ) -> list[Json]:
        """See `Cluster`; large lists are read in pages."""
        resource = resource_of(api_version, kind)
        params = {"limit": str(PAGE_OBJECTS)}
        if label_selector:
            params["labelSelector"] = label_selector
        if field_selector:
            params["fieldSelector"] = field_selector
        items: list[Json] = []
        while True:
            page = await self._request("list", "GET", resource, _path(resource, namespace), params=params)
            # Items of a list carry neither apiVersion nor kind.
            items.extend({"apiVersion": api_version, "kind": kind, **_trimmed(item)} for item in page["items"] or ())
            token = page["metadata"].get("continue")
            if not token:
                return items
            params["continue"] = token

    async def apply(self, obj: Json, manager: str, *, force: bool) -> Json:
        """See `Cluster`."""
        resource, path = _path_of(obj)
        params = {"fieldManager": manager, "force": str(force).lower()}
        return await self._request("patch", "PATCH", resource, path, params=params, body=obj, content_type=APPLY_TYPE)

    async def create(self, obj: Json) -> Json:
        """See `Cluster`."""
        resource, path = _path_of(obj)
        return await self._request("create", "POST", resource, path.rpartition("/")[0], body=obj)

    async def replace(self, obj: Json) -> Json:
        """See `Cluster`."""
        resource, path = _path_of(obj)
        return await self._request("update", "PUT", resource, path, body=obj)

    async def delete(self, api_version: str, kind: str, namespace: str | None, name: str, uid: str) -> None:
        """See `Cluster`."""
        resource = resource_of(api_version, kind)
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self._request("delete", "DELETE", resource, _path(resource, namespace, name), body=options)
        except ApiGone:
            return

    async def patch_status(
        self, api_version: str, kind: str, namespace: str | None, name: str, status: Json, manager: str, version: str
    ) -> Json:
        """See `Cluster`."""
        resource = resource_of(api_version, kind)
        metadata = {"name": name, "resourceVersion": version, **({"namespace": namespace} if namespace else {})}
        body = {"apiVersion": api_version, "kind": kind, "metadata": metadata, "status": status}
        params = {"fieldManager": manager, "force": "true"}
        path = f"{_path(resource, namespace, name)}/status"
        return await self._request("patch", "PATCH", resource, path, params=params, body=body, content_type=APPLY_TYPE)

    async def _request(
        self,
        verb: str,
        method: str,
        resource: Resource,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        headers = {"Accept": "application/json"}
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token
        if body is not None:
            headers["Content-Type"] = content_type
        url = f"{self._configuration.host}{path}"
        code = "error"
        try:
            async with self._session.request(method, url, params=params, json=body, headers=headers) as response:
                code = str(response.status)
                document = await _document(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiThrottled(f"the API server did not answer: {error!r}") from error
        finally:
            self._on_request(verb, resource.plural, code)
        if response.status >= 400:
            raise _mapped(response.status, document, response.headers.get("Retry-After"))
        return _trimmed(document)


class RouterPorts:
    """Reads router reports by pod IP, all at once, with a deadline for each; see `RouterReader`."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ROUTER_TIMEOUT_S))

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def read(self, pods: Sequence[tuple[str, str]]) -> tuple[RouterObservation, ...]:
        """One observation for each (pod name, pod IP), in the same order; never raises."""
        return tuple(await asyncio.gather(*(self._read_one(name, address) for name, address in pods)))

    async def _read_one(self, name: str, address: str) -> RouterObservation:
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._session.get(f"http://{host}:{PORT_ROUTER_ADMIN}{PATH_ROUTES}") as response:
                response.raise_for_status()
                document = await _document(response)
            return RouterObservation(name, parse_router_report(document))
        except (Incompatible, InvalidSpec) as error:
            return RouterObservation(name, None, error=error.message)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return RouterObservation(name, None, error=f"no answer from the admin port: {error!r}"[:256])


async def _document(response: aiohttp.ClientResponse) -> Json:
    try:
        document = await response.json(content_type=None)
    except ValueError as error:
        text = (await response.text(errors="replace"))[:200]
        if response.status < 400:
            raise ApiThrottled(f"the answer is not JSON: {text!r}") from error
        return {"message": text}
    return cast("Json", document) if isinstance(document, dict) else {"message": str(document)[:200]}


def _path(resource: Resource, namespace: str | None, name: str | None = None) -> str:
    root = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.api_version}"
    scope = f"/namespaces/{namespace}" if namespace is not None and resource.namespaced else ""
    return f"{root}{scope}/{resource.plural}" + (f"/{name}" if name is not None else "")


def _path_of(obj: Json) -> tuple[Resource, str]:
    resource = resource_of(obj["apiVersion"], obj["kind"])
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    if resource.namespaced and not namespace:
        raise Bug(f"{resource.kind} {metadata['name']} has no namespace")
    return resource, _path(resource, namespace, metadata["name"])


def _trimmed(obj: Json) -> dict[str, Any]:
    """Without managedFields: they are often larger than the object, and nothing here reads them."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict) or "managedFields" not in metadata:
        return dict(obj)
    return {**obj, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}}


def _mapped(status: int, document: Json, retry_after: str | None) -> ForebayError:
    message = str(document.get("message") or f"HTTP {status}")
    causes = {c.get("reason") for c in (document.get("details") or {}).get("causes") or ()}
    match status:
        case 404 | 410:
            return ApiGone(message)
        case 409:
            return ApiConflict(message)
        case 403 if "NamespaceTerminating" in causes:
            return ApiGone(message)
        case 401 | 403:
            return ApiDenied(message)
        case 400 | 405 | 406 | 413 | 415 | 422:
            return ApplyRefused(message)
    seconds = float(retry_after) if retry_after and retry_after.isdigit() else 1.0
    return ApiThrottled(f"HTTP {status}: {message}", retry=Retry(RetryKind.AFTER, seconds))
