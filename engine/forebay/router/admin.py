"""The admin port: health, readiness, metrics, what the router can route to, and drain.

Separate from the data port so that probes and the operator get through when clients fill it. Only the kubelet, the
operator and a metrics collector need to reach it.
"""

from aiohttp import web

from forebay.contract.names import PATH_DRAIN, PATH_HEALTH, PATH_METRICS, PATH_READY, PATH_ROUTES
from forebay.contract.promtext import CONTENT_TYPE
from forebay.router.gateway import Gateway


def make_admin(gateway: Gateway) -> web.Application:
    """The admin application of one router."""

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(_: web.Request) -> web.Response:
        reason = "ok" if gateway.ready else "draining" if gateway.draining else "routes or endpoints are not known yet"
        return web.json_response({"status": reason}, status=200 if gateway.ready else 503)

    async def metrics(_: web.Request) -> web.Response:
        gateway.fleet.gauge(gateway.now())
        return web.Response(text=gateway.metrics.registry.render(), headers={"content-type": CONTENT_TYPE})

    async def routes(_: web.Request) -> web.Response:
        return web.json_response(gateway.fleet.report(gateway.now()).to_json())

    async def drain(_: web.Request) -> web.Response:
        gateway.draining = True
        return web.json_response({"draining": True, "inflight": len(gateway.exchanges)})

    application = web.Application()
    application.router.add_get(PATH_HEALTH, health)
    application.router.add_get(PATH_READY, ready)
    application.router.add_get(PATH_METRICS, metrics)
    application.router.add_get(PATH_ROUTES, routes)
    application.router.add_post(PATH_DRAIN, drain)
    return application
