"""The process: kopf watches at the edge, the controller inside, and two HTTP ports.

kopf is used for one thing: `on.event` handlers that turn watch events into keys. Such handlers leave no annotation and
no finalizer behind and keep no state. Everything that matters (retries, order, leadership) is ours. This is the only
module that imports kopf; `__main__` calls `run`.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final, cast

import kopf
from aiohttp import web

from forebay.contract.errors import ApiGone, ForebayError
from forebay.contract.names import LABEL_DEPLOYMENT, PATH_HEALTH, PATH_METRICS, PATH_READY
from forebay.contract.promtext import CONTENT_TYPE
from forebay.operator.cluster import CHILD_RESOURCES, OTHER_RESOURCES, OWN_RESOURCES, Resource
from forebay.operator.config import OperatorConfig
from forebay.operator.controller import Controller, Outside
from forebay.operator.kube import Credentials, KubeCluster, RouterPorts, credentials, load_configuration
from forebay.operator.metrics import Metrics

log = logging.getLogger(__name__)

LABELLED: Final = (*CHILD_RESOURCES, *(r for r in OTHER_RESOURCES if r.kind == "Pod"))
"""Watched by label, at the server: only our own objects travel."""
WATCHED: Final = (*OWN_RESOURCES, *LABELLED, *(r for r in OTHER_RESOURCES if r.kind == "Node"))

SERVED_POLL_S: Final = 5.0
WATCH_SERVER_S: Final = 300
WATCH_CLIENT_S: Final = 330
WATCH_SILENCE_S: Final = 150
"""Bookmarks come about once a minute; a connection that shows none for longer is dead and is opened again."""


class SystemClock:
    """The real clock."""

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def wall_s(self) -> float:
        """See `Clock`."""
        return time.time()


async def run(config: OperatorConfig) -> None:
    """Run until SIGTERM or SIGINT, which end kopf. Raises `LeadershipLost` when another process may lead."""
    configuration = await load_configuration()
    metrics = Metrics()
    cluster = KubeCluster(configuration, metrics.requested)
    routers = RouterPorts()
    controller = Controller(config, Outside(cluster, routers, SystemClock(), metrics))
    servers = [
        await _serve(config.health_port, _health_app(controller)),
        await _serve(config.metrics_port, _metrics_app(metrics)),
    ]

    async def connect() -> Credentials:
        return await credentials(configuration)

    tasks = {
        asyncio.create_task(_watch_when_served(config, cluster, controller, connect), name="watches"),
        asyncio.create_task(controller.run(), name="controller"),
    }
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _release(controller)
        await asyncio.gather(*(server.cleanup() for server in servers), cluster.close(), routers.close())


async def _release(controller: Controller) -> None:
    try:
        await controller.elector.release()
    except ForebayError as error:
        log.warning("the lease was not released: %s", error)


async def _watch_when_served(
    config: OperatorConfig, cluster: KubeCluster, controller: Controller, connect: Callable[[], Any]
) -> None:
    """kopf looks for our kinds once, at its start; so it starts only when they are there."""
    namespace = config.watch_namespaces[0] if config.watch_namespaces else None
    for resource in OWN_RESOURCES:
        where = namespace if resource.namespaced else None
        served = await _is_served(cluster, resource, where)
        while not served:
            await asyncio.sleep(SERVED_POLL_S)
            served = await _is_served(cluster, resource, where)
    controller.probe.watching()
    await _watch(config, controller.on_event, connect)


async def _is_served(cluster: KubeCluster, resource: Resource, namespace: str | None) -> bool:
    try:
        await cluster.list(resource.api_version, resource.kind, namespace)
    except ApiGone:
        log.warning("the API server does not know %s; install the chart forebay-crds", resource.plural)
        return False
    except ForebayError as error:
        log.warning("%s cannot be listed: %s", resource.plural, error)
        return False
    return True


async def _watch(config: OperatorConfig, on_event: Callable[..., None], connect: Callable[[], Any]) -> None:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry, retries=None)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        found: Credentials = await connect()
        scheme, token = (found.authorization or " ").split(" ", 1)
        return kopf.ConnectionInfo(
            server=found.server,
            ca_path=found.ca_path,
            ca_data=found.ca_data,
            insecure=not found.verify_tls,
            scheme=scheme or None,
            token=token or None,
            certificate_path=found.certificate_path,
            private_key_path=found.key_path,
            default_namespace=config.namespace,
        )

    for resource in WATCHED:
        kopf.on.event(
            group=resource.group,
            version=_version(resource),
            plural=resource.plural,
            registry=registry,
            id=resource.kind,
        )(_handler(resource.kind, on_event))
    await kopf.operator(
        registry=registry,
        settings=_settings(),
        # Otherwise kopf asks for the user's name, and the pod's user has none.
        identity=cast("Any", config.identity),
        standalone=True,
        clusterwide=not config.watch_namespaces,
        namespaces=config.watch_namespaces,
    )


def _handler(kind: str, on_event: Callable[..., None]) -> Callable[..., Any]:
    async def handle(event: kopf.RawEvent, **_: Any) -> None:
        on_event(kind, event["object"], deleted=event["type"] == "DELETED")

    return handle


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.posting.level = logging.WARNING
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = WATCH_SERVER_S
    settings.watching.client_timeout = WATCH_CLIENT_S
    settings.watching.inactivity_timeout = WATCH_SILENCE_S
    settings.watching.connect_timeout = 30
    settings.watching.reconnect_backoff = 1
    settings.watching.chunk_size = 500
    settings.queueing.worker_limit = 50
    settings.queueing.idle_timeout = 1
    settings.networking.request_timeout = 60
    settings.networking.enforce_retry_after = True
    settings.execution.max_workers = 1
    for resource in LABELLED:
        settings.watching.label_selectors[resource.group, _version(resource), resource.plural] = LABEL_DEPLOYMENT
    return settings


def _version(resource: Resource) -> str:
    return resource.api_version.rpartition("/")[2]


def _health_app(controller: Controller) -> web.Application:
    async def health(_: web.Request) -> web.Response:
        return _verdict(controller.probe.complaint())

    async def ready(_: web.Request) -> web.Response:
        return _verdict(controller.probe.unready())

    app = web.Application()
    app.router.add_get(PATH_HEALTH, health)
    app.router.add_get(PATH_READY, ready)
    return app


def _verdict(complaint: str | None) -> web.Response:
    return web.Response(text=f"{complaint or 'ok'}\n", status=503 if complaint else 200)


def _metrics_app(metrics: Metrics) -> web.Application:
    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=metrics.registry.render().encode(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get(PATH_METRICS, scrape)
    return app


async def _serve(port: int, app: web.Application) -> web.AppRunner:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    # All interfaces: the kubelet and Prometheus reach the pod by its address.
    await web.TCPSite(runner, None, port).start()
    return runner
