"""A router inside the test's own event loop: real sockets and the real data port, without a process.

Used where a test needs many routers quickly, or small timeouts. `settings` gives the defaults of the command line with
changes; `RunningRouter` serves until the `async with` block ends and checks that nothing is left in flight.
"""

import asyncio
import functools
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec

import uvloop

from forebay.contract.wire import Routes, RouteWeight
from forebay.router.config import Settings, parse
from forebay.router.dataport import ClientConnection
from forebay.router.gateway import Gateway
from forebay.router.keys import KeySource
from forebay.router.view import Discovered, Endpoint

REVISION = "0123456789"
Parameters = ParamSpec("Parameters")


def on_uvloop(test: Callable[Parameters, Coroutine[Any, Any, None]]) -> Callable[Parameters, None]:
    """Run an async test on the loop that the router's process runs on."""

    @functools.wraps(test)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(*args, **kwargs))

    return run


async def until(condition: Callable[[], object], deadline_s: float = 3.0) -> None:
    """Wait until the condition is true; fails when it does not become so."""
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline_s
    done = condition()
    while not done:
        assert loop.time() < end, "the condition did not become true in time"
        await asyncio.sleep(0.002)
        done = condition()


def settings(**changes: object) -> Settings:
    """The default settings with changes by field name."""
    base = parse(["--static-routes", "unused.json", "--host", "127.0.0.1"], {})
    return replace(base, **changes)  # type: ignore[arg-type]  # field values are checked by the tests that use them


def endpoint(pod: str, port: int, revision: str = REVISION) -> Discovered:
    """A ready endpoint on the loopback address."""
    return Discovered(Endpoint(pod, "127.0.0.1", port, revision), ready=True, terminating=False)


def routes(*weights: tuple[str, int], models: Sequence[str] = ("m",), epoch: int = 1) -> Routes:
    """A routes document; without weights one revision gets everything."""
    chosen = weights or ((REVISION, 1),)
    return Routes(epoch, tuple(models), tuple(RouteWeight(revision, weight) for revision, weight in chosen))


class RunningRouter:
    """A data port on a free port. `gateway` gives access to its state and metrics."""

    def __init__(self, endpoints: Sequence[Discovered], document: Routes | None = None, **changes: object) -> None:
        self._endpoints = endpoints
        self._routes = document or routes()
        self._settings = settings(**changes)
        self.port = 0

    async def __aenter__(self) -> "RunningRouter":
        loop = asyncio.get_running_loop()
        count = itertools.count()
        keys = KeySource(self._settings.api_keys_dir)
        self.gateway = Gateway(self._settings, keys, loop, lambda: f"test-{next(count)}", 1_700_000_000)
        self.gateway.fleet.apply_endpoints(self._endpoints)
        self.gateway.fleet.apply_routes(self._routes)
        self._server = await loop.create_server(lambda: ClientConnection(self.gateway), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self._sweeper = asyncio.create_task(self._sweep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        if error is None:
            await self.idle()
        self._sweeper.cancel()
        self.gateway.pool.close()

    async def idle(self, deadline_s: float = 2.0) -> None:
        """Wait until nothing is in flight: no exchange, no lease, no stream, no held byte."""
        gateway = self.gateway

        def busy() -> dict[str, object]:
            states = gateway.fleet.view.endpoints
            counts: dict[str, object] = {
                "exchanges": len(gateway.exchanges),
                "leases": sum(state.ledger.inflight for state in states),
                "unreported": sum(state.ledger.unreported() for state in states),
                "streams": sum(gateway.streams.values()),
                "held bytes": gateway.buffered_bytes,
            }
            return {name: count for name, count in counts.items() if count}

        try:
            await until(lambda: not busy(), deadline_s)
        except AssertionError:
            raise AssertionError(f"left behind: {busy()}") from None

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            self.gateway.sweep()


def keys_directory(path: Path, **keys: str) -> Path:
    """A directory of key files: client=key."""
    path.mkdir(exist_ok=True)
    for client, key in keys.items():
        (path / client).write_text(key + "\n")
    return path
