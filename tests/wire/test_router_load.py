"""The router follows the engines' load reports, and its own requests count until a report does."""

import asyncio

import orjson

from fault_upstream import Client, Served, Upstream, ask, healthy, post, reply
from forebay.contract.wire import LoadReport
from forebay.router.loadpoll import LoadPoller
from router_build import RunningRouter, endpoint, on_uvloop, until

PLAIN = b'{"model":"m"}'


class Engine:
    """An engine with a load report that a test sets."""

    def __init__(self) -> None:
        self.load: LoadReport | None = LoadReport("e", 0, 0, 0, 0, 100, 8, 0.0, 0.0, False)
        self.asked = 0
        self.hold = asyncio.Event()
        self.hold.set()

    async def script(self, served: Served) -> None:
        if served.path == b"/v1/forebay/load":
            if self.load is None:
                await served.send(reply(b"{}", status=b"404 Not Found"))
            else:
                await served.send(reply(orjson.dumps(self.load.to_json())))
            return
        self.asked += 1
        await self.hold.wait()
        await healthy(served)


@on_uvloop
async def test_reports_move_traffic_and_a_draining_engine_gets_none() -> None:
    one, two = Engine(), Engine()
    async with (
        Upstream(one.script) as a,
        Upstream(two.script) as b,
        RunningRouter([endpoint("a", a.port), endpoint("b", b.port)]) as router,
    ):
        gateway = router.gateway
        polling = asyncio.create_task(LoadPoller(gateway.fleet, gateway.metrics, 0.02, gateway.now).run())
        first, second = gateway.fleet.view.endpoints
        one.load = LoadReport("e", 6, 3, 0, 0, 100, 8, 0.0, 0.0, False)
        await until(lambda: first.ledger.report == one.load and second.ledger.report is not None)
        for _ in range(5):
            await ask(router.port, post(PLAIN))
        assert (one.asked, two.asked) == (0, 5)
        two.load = LoadReport("e", 0, 0, 0, 0, 100, 8, 0.0, 0.0, True)
        await until(lambda: not second.routable)
        await ask(router.port, post(PLAIN))
        assert (one.asked, two.asked) == (1, 5)
        assert [e.routable for e in gateway.fleet.view.report(gateway.now()).endpoints] == [True, False]
        two.load = LoadReport("e", 0, 0, 0, 0, 100, 8, 0.0, 0.0, False)
        await until(lambda: second.routable)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)


@on_uvloop
async def test_a_burst_between_two_reports_is_spread_and_not_herded() -> None:
    one, two = Engine(), Engine()
    one.hold.clear()
    two.hold.clear()
    one.load = LoadReport("e", 2, 0, 0, 0, 100, 8, 0.0, 0.0, False)
    async with (
        Upstream(one.script) as a,
        Upstream(two.script) as b,
        RunningRouter([endpoint("a", a.port), endpoint("b", b.port)]) as router,
    ):
        gateway = router.gateway
        polling = asyncio.create_task(LoadPoller(gateway.fleet, gateway.metrics, 60, gateway.now).run())
        await until(lambda: all(state.ledger.report for state in gateway.fleet.view.endpoints))
        asking = [asyncio.create_task(ask(router.port, post(PLAIN))) for _ in range(10)]
        await until(lambda: one.asked + two.asked == 10)
        assert (one.asked, two.asked) == (4, 6)
        one.hold.set()
        two.hold.set()
        await asyncio.gather(*asking)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)


@on_uvloop
async def test_engines_without_a_report_share_by_requests_in_flight() -> None:
    one, two = Engine(), Engine()
    one.load = two.load = None
    one.hold.clear()
    async with (
        Upstream(one.script) as a,
        Upstream(two.script) as b,
        RunningRouter([endpoint("a", a.port), endpoint("b", b.port)]) as router,
        Client(router.port) as stuck,
    ):
        gateway = router.gateway
        polling = asyncio.create_task(LoadPoller(gateway.fleet, gateway.metrics, 0.02, gateway.now).run())
        await until(lambda: gateway.metrics.polls.values[("failed",)] >= 2)
        await stuck.send(post(PLAIN))
        await until(lambda: one.asked == 1)
        for _ in range(5):
            await ask(router.port, post(PLAIN))
        assert (one.asked, two.asked) == (1, 5)
        assert gateway.fleet.view.report(gateway.now()).endpoints[0].load_age_s is None
        one.hold.set()
        await stuck.response()
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
