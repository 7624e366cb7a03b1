"""Metrics of the operator process: passes, API requests, watch events and the state of queue and lease.

Written by the worker, the API client and the watch edge; rendered by the metrics port. Gauges are computed at scrape
time from the parts that own the numbers.
"""

from collections.abc import Callable, Mapping
from typing import Final

from forebay.contract.names import METRIC_PREFIX
from forebay.contract.promtext import Registry
from forebay.operator.edge import OWN_KINDS

PREFIX: Final = f"{METRIC_PREFIX}operator_"
OUTCOMES: Final = ("ok", "conflict", "contended", "gone", "throttled", "denied", "bug")
WRITE_VERBS: Final = ("create", "delete", "patch", "update")
PASS_BOUNDS_S: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class Metrics:
    """Counters of one operator process; not thread-safe."""

    def __init__(self) -> None:
        self.registry = Registry()
        kinds = sorted(OWN_KINDS)
        self._passes = self.registry.counter(
            f"{PREFIX}reconciles_total", "Passes by kind and outcome.", {"kind": kinds, "outcome": OUTCOMES}
        )
        self._seconds = self.registry.histogram(
            f"{PREFIX}pass_seconds", "Duration of a pass.", PASS_BOUNDS_S, {"kind": kinds}
        )
        self._requests = self.registry.counter(
            f"{PREFIX}api_requests_total",
            "Requests to the API server by verb, resource and HTTP status.",
            {"verb": (), "resource": (), "code": ()},
        )
        self._writes = self.registry.counter(
            f"{PREFIX}api_writes_total", "Writes to the API server by verb.", {"verb": WRITE_VERBS}
        )
        self._events = self.registry.counter(
            f"{PREFIX}watch_events_total", "Watch events of the resources users write, by kind.", {"kind": kinds}
        )

    def gauges(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        """Register gauges by name, each with its help text and the function that reads it."""
        for name, (text, read) in gauges.items():
            self.registry.gauge(PREFIX + name, text).read_with(read)

    def passed(self, kind: str, outcome: str, seconds: float) -> None:
        """Count one pass; `outcome` is one of `OUTCOMES`."""
        self._passes.inc(kind, outcome)
        self._seconds.observe(seconds, kind)

    def requested(self, verb: str, resource: str, code: str) -> None:
        """Count one finished request; `code` is the HTTP status, or `error` when none came back."""
        self._requests.inc(verb, resource, code)
        if verb in WRITE_VERBS:
            self._writes.inc(verb)

    def watched(self, kind: str) -> None:
        """Count one watch event."""
        self._events.inc(kind)
