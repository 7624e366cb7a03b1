"""The life of a router process: start, serve, drain, end.

On SIGTERM readiness goes off while new requests are still taken, until the Service has stopped sending them; every
answer then ends its connection. After that the listener closes, requests in flight finish, and the process exits 0.
"""

import asyncio
import gc
import logging
import signal
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import web

from forebay.router.admin import make_admin
from forebay.router.config import Settings
from forebay.router.dataport import ClientConnection
from forebay.router.discovery import follow_file, follow_kubernetes
from forebay.router.gateway import Gateway
from forebay.router.keys import KeySource
from forebay.router.loadpoll import LoadPoller

LOG = logging.getLogger(__name__)
SWEEP_S = 0.2
KEYS_RELOAD_S = 1.0
BACKLOG = 1024


async def serve(settings: Settings, announce: Callable[[int, int], None]) -> None:
    """Run until SIGTERM or SIGINT and the drain that follows; `announce` gets the data and the admin port."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    prefix = uuid.uuid4().hex[:12]
    count = iter(range(1 << 62))
    keys = KeySource(settings.api_keys_dir)
    gateway = Gateway(settings, keys, loop, lambda: f"{prefix}-{next(count):x}", int(time.time()))
    runner = web.AppRunner(make_admin(gateway), access_log=None)
    await runner.setup()
    admin = web.TCPSite(runner, settings.host, settings.admin_port)
    await admin.start()
    server = await loop.create_server(
        lambda: ClientConnection(gateway), settings.host, settings.port, backlog=BACKLOG, reuse_address=True
    )
    poller = LoadPoller(gateway.fleet, gateway.metrics, settings.load_poll_s, loop.time)
    follow = (
        follow_kubernetes(settings, gateway.fleet, gateway.metrics)
        if settings.static_routes is None
        else follow_file(settings.static_routes, gateway.fleet)
    )
    tasks = [_background(coroutine, stop) for coroutine in (follow, poller.run(), _sweep(gateway), _reload(keys))]
    gc.collect()
    gc.freeze()
    announce(server.sockets[0].getsockname()[1], runner.addresses[0][1])
    await stop.wait()
    await _drain(gateway, server)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    gateway.pool.close()
    await runner.cleanup()
    for task in tasks:
        if not task.cancelled() and task.exception() is not None:
            raise SystemExit(1)


def _background(coroutine: Coroutine[Any, Any, None], stop: asyncio.Event) -> asyncio.Task[None]:
    """A task that must not end; if it fails the process drains and exits non-zero."""
    task = asyncio.create_task(coroutine)

    def ended(done: asyncio.Task[None]) -> None:
        if not done.cancelled():
            LOG.critical("a background task ended", exc_info=done.exception())
            stop.set()

    task.add_done_callback(ended)
    return task


async def _sweep(gateway: Gateway) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        gateway.sweep()


async def _reload(keys: KeySource) -> None:
    while True:
        await asyncio.sleep(KEYS_RELOAD_S)
        keys.reload()


async def _drain(gateway: Gateway, server: asyncio.Server) -> None:
    settings = gateway.settings
    gateway.draining = True
    LOG.info("draining: accepting for %g s more", settings.drain_s)
    await asyncio.sleep(settings.drain_s)
    server.close()
    deadline_s = gateway.now() + settings.grace_s
    while gateway.connections and gateway.now() < deadline_s:
        for connection in list(gateway.connections):
            connection.close_if_idle()
        await asyncio.sleep(0.05)
    LOG.info("drained with %d connections left", len(gateway.connections))
