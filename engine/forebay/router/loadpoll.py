"""Polls each engine's load report, so that routing sees what other routers sent there.

One poll for each endpoint at a time. A failed poll leaves the old report to age; an engine that refuses connections is
also told to the breaker, so that a dead endpoint is noticed without spending a client's request on it.
"""

import asyncio
import logging
from collections.abc import Callable

import aiohttp
import orjson

from forebay.contract.errors import ForebayError
from forebay.contract.names import PATH_LOAD
from forebay.contract.wire import parse_load_report
from forebay.router.fleet import Fleet
from forebay.router.metrics import Metrics
from forebay.router.view import EndpointState

LOG = logging.getLogger(__name__)
POLL_TIMEOUT_S = 2.0
MAX_REPORT_BYTES = 65536


class LoadPoller:
    """Runs until cancelled; `now` is the loop's clock, the same that routing uses."""

    def __init__(self, fleet: Fleet, metrics: Metrics, interval_s: float, now: Callable[[], float]) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._interval_s = interval_s
        self._now = now
        self._polling: dict[EndpointState, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Poll all endpoints of the current view, forever."""
        timeout = aiohttp.ClientTimeout(total=POLL_TIMEOUT_S)
        connector = aiohttp.TCPConnector(keepalive_timeout=3.0, limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            try:
                while True:
                    for state in self._fleet.view.endpoints:
                        if state.ready and state not in self._polling:
                            self._polling[state] = asyncio.create_task(self._poll(session, state))
                    await asyncio.sleep(self._interval_s)
            finally:
                for task in self._polling.values():
                    task.cancel()

    async def _poll(self, session: aiohttp.ClientSession, state: EndpointState) -> None:
        state.ledger.poll_started()
        try:
            async with session.get(f"http://{state.endpoint.address}{PATH_LOAD}") as response:
                response.raise_for_status()
                document = orjson.loads(await response.content.read(MAX_REPORT_BYTES))
                state.reported(parse_load_report(document), self._now())
                self._metrics.polls.inc("ok")
        except (aiohttp.ClientError, TimeoutError, ForebayError, ValueError, AttributeError) as error:
            self._metrics.polls.inc("failed")
            LOG.debug("load poll of %s failed: %r", state.endpoint.address, error)
            if isinstance(error, aiohttp.ClientConnectorError):
                state.breaker.failed(self._now())
        finally:
            self._polling.pop(state, None)
