"""The router's metrics: one object with a field for each family, all present from the first scrape.

Labels come from closed sets: route templates, code classes, failure kinds. Only revisions are open, and bounded: a
revision's series goes when the revision leaves the routes document.
"""

from forebay.contract.promtext import Registry
from forebay.router.retry import Failure

ROUTES = {
    b"/v1/chat/completions": "chat_completions",
    b"/v1/completions": "completions",
    b"/v1/embeddings": "embeddings",
    b"/v1/responses": "responses",
    b"/v1/models": "models",
    b"/tokenize": "tokenize",
    b"/detokenize": "detokenize",
    b"/health": "health",
    b"/ready": "ready",
}
ROUTE_LABELS = (*ROUTES.values(), "other")
CODES = ("2xx", "3xx", "4xx", "5xx", "499")
PHASES = ("connect", "headers", "first_chunk", "body")
REJECTIONS = ("malformed", "unauthorized", "unknown_path", "unknown_model", "no_endpoint", "limit", "timeout")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """All families of a router process."""

    def __init__(self) -> None:
        registry = self.registry = Registry()
        counter, histogram = registry.counter, registry.histogram
        self.requests = counter(
            "forebay_router_requests_total",
            "Requests ended, by route and code class; 499 means the client left",
            {"route": ROUTE_LABELS, "code": CODES},
        )
        self.revision_requests = counter(
            "forebay_router_revision_requests_total", "Requests dispatched to each revision", {"revision": ()}
        )
        self.first_byte = histogram(
            "forebay_router_first_byte_seconds",
            "Time from a complete request to the first body byte from an engine",
            _SECONDS,
            {"route": ROUTE_LABELS},
        )
        self.duration = histogram(
            "forebay_router_request_seconds",
            "Time from a complete request to the end of its answer",
            _SECONDS,
            {"route": ROUTE_LABELS},
        )
        self.failures = counter(
            "forebay_router_upstream_failures_total",
            "Attempts at an engine that failed, by kind",
            {"kind": tuple(failure.value for failure in Failure)},
        )
        self.retries = counter(
            "forebay_router_retries_total",
            "Attempts repeated at another engine, by the failure before",
            {"kind": tuple(failure.value for failure in Failure)},
        )
        self.cancelled = counter(
            "forebay_router_cancelled_total", "Requests whose client left, by phase", {"phase": PHASES}
        )
        self.rejected = counter(
            "forebay_router_rejected_total", "Requests answered by the router itself", {"reason": REJECTIONS}
        )
        self.cut_streams = counter("forebay_router_cut_answers_total", "Answers cut after their first byte")
        self.relayed_bytes = 0
        relayed = counter("forebay_router_relayed_bytes_total", "Answer bytes relayed to clients")
        relayed.read_with(lambda: self.relayed_bytes)
        self._add_state(registry)

    def _add_state(self, registry: Registry) -> None:
        counter, gauge = registry.counter, registry.gauge
        self.connects = counter("forebay_router_upstream_connects_total", "Connections opened to engines")
        self.connections = gauge("forebay_router_connections", "Open client connections")
        self.inflight = gauge("forebay_router_inflight_requests", "Requests at engines")
        self.streams = gauge("forebay_router_inflight_streams", "Requests at engines that asked for a stream")
        self.buffered = gauge("forebay_router_buffered_request_bytes", "Request bodies held")
        self.endpoints = gauge(
            "forebay_router_endpoints", "Engines, by state", {"state": ("known", "routable", "draining", "held")}
        )
        self.epoch = gauge("forebay_router_routes_epoch", "Epoch of the routes document in use")
        self.synced = gauge("forebay_router_synced", "1 once routes and endpoints were read")
        self.discovery_up = gauge(
            "forebay_router_discovery_up", "1 while the watch is open", {"source": ("endpoints", "routes")}
        )
        self.relists = counter(
            "forebay_router_discovery_lists_total", "Lists of the watched objects", {"source": ("endpoints", "routes")}
        )
        self.discovery_errors = counter(
            "forebay_router_discovery_errors_total", "Failed lists and watches", {"source": ("endpoints", "routes")}
        )
        self.polls = counter(
            "forebay_router_load_polls_total", "Load polls of engines, by result", {"result": ("ok", "failed")}
        )
        self.draining = gauge("forebay_router_draining", "1 after SIGTERM or a drain request")
