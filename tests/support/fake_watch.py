"""A small API server for the router's discovery: list and watch of EndpointSlices and ConfigMaps, with faults.

It checks the bearer token, keeps one resourceVersion for everything and what it was asked, and can break watches,
lose events, refuse requests, expire versions and go away. Only what discovery uses is there.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from aiohttp import web

Json = dict[str, Any]
SLICES = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"
CONFIG_MAPS = "/api/v1/namespaces/ns/configmaps"


def slice_of(revision: str, *pods: tuple[str, str], name: str | None = None, **conditions: bool) -> Json:
    """An EndpointSlice with one endpoint for each (pod, address)."""
    return {
        "metadata": {"name": name or f"slice-{revision}", "labels": {"forebay.dev/revision": revision}},
        "ports": [{"name": "http", "port": 8000}],
        "endpoints": [
            {
                "addresses": [address],
                "conditions": {"ready": True, **conditions},
                "targetRef": {"kind": "Pod", "name": pod},
            }
            for pod, address in pods
        ],
    }


def routes_map(epoch: int, *weights: tuple[str, int], name: str = "dep-routes") -> Json:
    """The routes ConfigMap."""
    document = {
        "version": 1,
        "epoch": epoch,
        "models": ["m"],
        "weights": [{"revision": revision, "weight": weight} for revision, weight in weights],
    }
    return {"metadata": {"name": name}, "data": {"routes.json": json.dumps(document)}}


class FakeWatch:
    """The server; `put` and `delete` change objects and tell the open watches."""

    def __init__(self) -> None:
        self.token = "first"
        self.version = 1
        self.objects: dict[str, dict[str, Json]] = {SLICES: {}, CONFIG_MAPS: {}}
        self.seen: list[Json] = []
        self.refuse_with = 0
        self.mute = False
        self.away = False
        self._history: list[tuple[int, str, Json]] = []
        self._watches: set[tuple[str, asyncio.Queue[Json | None]]] = set()

    async def __aenter__(self) -> "FakeWatch":
        application = web.Application()
        for path in self.objects:
            application.router.add_get(path, self._serve)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await self.start(0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.break_watches()
        await self._runner.cleanup()

    async def start(self, port: int) -> None:
        """Listen; after `stop` with the port it had before."""
        self.away = False
        self._site = web.TCPSite(self._runner, "127.0.0.1", port)
        await self._site.start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening and break every watch and connection, as an API server that restarts."""
        self.away = True
        self.break_watches()
        await self._site.stop()

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    def put(self, path: str, item: Json) -> None:
        """Create or change an object."""
        self._change(path, "MODIFIED", item)

    def delete(self, path: str, name: str) -> None:
        """Delete an object."""
        self._change(path, "DELETED", self.objects[path][name])

    def send(self, path: str, event: Json) -> None:
        """Send any event to the watches of a path."""
        for watched, queue in self._watches:
            if watched == path:
                queue.put_nowait(event)

    def break_watches(self) -> None:
        """End every open watch."""
        for _, queue in self._watches:
            queue.put_nowait(None)

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Changes inside the block reach no watch, as if their events were lost."""
        self.mute = True
        try:
            yield
        finally:
            self.mute = False

    @property
    def watching(self) -> int:
        """Open watches."""
        return len(self._watches)

    def lists(self, path: str) -> int:
        """Lists of a path so far."""
        return sum(1 for seen in self.seen if seen["path"] == path and "watch" not in seen)

    def _change(self, path: str, kind: str, item: Json) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            del self.objects[path][item["metadata"]["name"]]
        else:
            self.objects[path][item["metadata"]["name"]] = item
        if not self.mute:
            event = {"type": kind, "object": item}
            self._history.append((self.version, path, event))
            self.send(path, event)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if self.away:
            assert request.transport is not None
            request.transport.abort()
        self.seen.append({"path": request.path, **request.query})
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return web.json_response({"message": "Unauthorized"}, status=401)
        if self.refuse_with:
            return web.json_response({"message": "refused"}, status=self.refuse_with)
        if "watch" in request.query:
            return await self._watch(request)
        items = list(self.objects[request.path].values())
        return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[Json | None] = asyncio.Queue()
        entry = (request.path, queue)
        since = int(request.query["resourceVersion"])
        for version, path, event in self._history:
            if path == request.path and version > since:
                queue.put_nowait(event)
        self._watches.add(entry)
        try:
            while (next_event := await queue.get()) is not None:
                await response.write(json.dumps(next_event).encode() + b"\n")
        finally:
            self._watches.discard(entry)
        return response
