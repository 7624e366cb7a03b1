"""How the router learns its endpoints and routes: from Kubernetes, or from a file in tests.

List and watch of the EndpointSlices of one deployment and of its routes ConfigMap, with nothing but GET requests.
After every break of a watch the objects are listed again, so a missed event cannot last. While the API server is away
the last known state stays in use. The token file is read again for each request, because Kubernetes rotates it.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from forebay.contract.errors import ApiDenied, ApiThrottled, ForebayError, InvalidSpec
from forebay.contract.names import LABEL_DEPLOYMENT, LABEL_ROLE, ROLE_ENGINE, routes_name
from forebay.router.config import Settings
from forebay.router.fleet import Fleet
from forebay.router.metrics import Metrics
from forebay.router.slices import read_routes, read_slices, read_static

LOG = logging.getLogger(__name__)
WATCH_S = 60
"""A watch ends by itself after this long, which bounds how long a silent break can last."""
MIN_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0
STEADY_S = 5.0
"""A watch that held this long ends the backoff."""
MAX_LINE_BYTES = 4 * 1024 * 1024
STATIC_POLL_S = 0.1

Objects = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Collection:
    """A set of objects to follow; `apply` gets all of them, by name, after each change."""

    source: str
    url: str
    selector: Mapping[str, str]
    apply: Callable[[Objects], None]


# What ends a list or a watch: the network, an answer that is not 200, an object without the shape of its kind.
_BREAKS = (aiohttp.ClientError, OSError, ForebayError, ValueError, LookupError, TypeError, AttributeError)


class Watcher:
    """Follows one collection until cancelled."""

    def __init__(
        self, session: aiohttp.ClientSession, token_file: Path | None, collection: Collection, metrics: Metrics
    ) -> None:
        self._session = session
        self._token_file = token_file
        self._collection = collection
        self._metrics = metrics
        self._objects: dict[str, Mapping[str, Any]] = {}

    async def run(self) -> None:
        """List, watch, and begin again, more slowly when it breaks at once each time."""
        source = self._collection.source
        loop = asyncio.get_running_loop()
        backoff_s = MIN_BACKOFF_S
        while True:
            began_s = loop.time()
            try:
                version = await self._list()
                self._metrics.discovery_up.set(1, source)
                await self._watch(version)
            except _BREAKS as error:
                self._metrics.discovery_errors.inc(source)
                self._metrics.discovery_up.set(0, source)
                LOG.warning("watching %s broke, keeping what is known: %r", source, error)
            if loop.time() - began_s > STEADY_S:
                backoff_s = MIN_BACKOFF_S
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))  # noqa: S311 (spreads retries only)
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)

    async def _list(self) -> str:
        async with self._get(self._collection.selector, aiohttp.ClientTimeout(total=15)) as response:
            await _check(response)
            document = orjson.loads(await response.read())
        self._objects = {item["metadata"]["name"]: item for item in document.get("items") or ()}
        self._metrics.relists.inc(self._collection.source)
        self._collection.apply(self._objects)
        return str(document["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> None:
        parameters = {
            **self._collection.selector,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        timeout = aiohttp.ClientTimeout(total=WATCH_S + 15, sock_connect=10)
        async with self._get(parameters, timeout) as response:
            await _check(response)
            async for line in response.content:
                if line.strip():
                    self._event(orjson.loads(line))

    def _event(self, event: Mapping[str, Any]) -> None:
        item = event["object"]
        match event["type"]:
            case "ADDED" | "MODIFIED":
                self._objects[item["metadata"]["name"]] = item
            case "DELETED":
                self._objects.pop(item["metadata"]["name"], None)
            case "BOOKMARK":
                return
            case _:
                raise ApiThrottled(f"the watch ended: {item.get('message', event['type'])}")
        self._collection.apply(self._objects)

    def _get(
        self, parameters: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> "aiohttp.client._RequestContextManager":
        headers = {"accept": "application/json"}
        if self._token_file is not None and self._token_file.exists():
            headers["authorization"] = f"Bearer {self._token_file.read_text().strip()}"
        return self._session.get(self._collection.url, params=dict(parameters), headers=headers, timeout=timeout)


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status in (401, 403):
        raise ApiDenied(f"{response.url.path} answered {response.status}: {(await response.text())[:500]}")
    if response.status != 200:
        raise ApiThrottled(f"{response.url.path} answered {response.status}")


async def follow_kubernetes(settings: Settings, fleet: Fleet, metrics: Metrics) -> None:
    """Keep the fleet up to date from the API server, until cancelled."""
    base = settings.apiserver
    context: ssl.SSLContext | bool = True
    if settings.ca_file is not None and settings.ca_file.exists():
        context = ssl.create_default_context(cafile=str(settings.ca_file))
    connector = aiohttp.TCPConnector(ssl=context)
    namespace = settings.namespace

    def apply_slices(objects: Objects) -> None:
        fleet.apply_endpoints(read_slices(objects.values()))

    def apply_routes(objects: Objects) -> None:
        for config_map in objects.values():
            try:
                fleet.apply_routes(read_routes(config_map))
            except ForebayError as error:
                LOG.warning("keeping the routes in use: %s", error.message)
                fleet.routes_unreadable()

    collections = (
        Collection(
            "endpoints",
            f"{base}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
            {"labelSelector": f"{LABEL_DEPLOYMENT}={settings.deployment},{LABEL_ROLE}={ROLE_ENGINE}"},
            apply_slices,
        ),
        Collection(
            "routes",
            f"{base}/api/v1/namespaces/{namespace}/configmaps",
            {"fieldSelector": f"metadata.name={routes_name(settings.deployment)}"},
            apply_routes,
        ),
    )
    async with (
        aiohttp.ClientSession(connector=connector, read_bufsize=MAX_LINE_BYTES) as session,
        asyncio.TaskGroup() as group,
    ):
        for collection in collections:
            group.create_task(Watcher(session, settings.token_file, collection, metrics).run())


async def follow_file(path: Path, fleet: Fleet) -> None:
    """Keep the fleet up to date from a file that is replaced or rewritten, until cancelled."""
    source = StaticFile(path, fleet)
    while True:
        source.look()
        await asyncio.sleep(STATIC_POLL_S)


class StaticFile:
    """Routes and endpoints from one file; a file that cannot be read changes nothing."""

    def __init__(self, path: Path, fleet: Fleet) -> None:
        self._path = path
        self._fleet = fleet
        self._seen: tuple[int, int, int] | None = None

    def look(self) -> None:
        """Apply the file if it changed since the last look."""
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if stamp == self._seen:
                return
            self._seen = stamp
            self._apply(orjson.loads(self._path.read_bytes()))
        except (OSError, ValueError, ForebayError) as error:
            LOG.warning("keeping the routes in use: %s: %s", self._path, error)

    def _apply(self, document: object) -> None:
        if not isinstance(document, dict):
            raise InvalidSpec("the static routes file must hold an object", field="routes")
        routes, endpoints = read_static(document)
        self._fleet.apply_endpoints(endpoints)
        self._fleet.apply_routes(routes)
