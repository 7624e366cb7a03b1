"""The router's current knowledge of its engines: the one owner of endpoint state.

Discovery, the load poller and exchanges report here; routing reads `view`. An endpoint that discovery no longer lists
leaves the view at once, while requests it still has keep their state object until their leases close.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

from forebay.contract.wire import RevisionReport, RouterReport, Routes
from forebay.router import policy
from forebay.router.breaker import BreakerLimits
from forebay.router.leases import Lease
from forebay.router.metrics import Metrics
from forebay.router.view import ClusterView, Discovered, Endpoint, EndpointState, make_view


class Fleet:
    """All endpoints and the routes document, with the decision entry `choose`."""

    def __init__(self, metrics: Metrics, on_gone: Callable[[EndpointState], None]) -> None:
        self.view = ClusterView()
        self._metrics = metrics
        self._on_gone = on_gone
        self._limits = BreakerLimits()
        self._states: dict[Endpoint, EndpointState] = {}
        self._routes: Routes | None = None
        self._endpoints_listed = False
        self._routes_readable = False
        self._picks = 0
        self._attempts: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    def apply_endpoints(self, found: Collection[Discovered]) -> None:
        """Replace the set of endpoints by what discovery lists now."""
        listed = {item.endpoint for item in found}
        for gone in [state for endpoint, state in self._states.items() if endpoint not in listed]:
            del self._states[gone.endpoint]
            gone.discovered(ready=False, terminating=True)
            self._on_gone(gone)
        for item in found:
            state = self._states.get(item.endpoint)
            if state is None:
                state = self._states[item.endpoint] = EndpointState(item.endpoint, self._limits)
            state.discovered(ready=item.ready, terminating=item.terminating)
        self._endpoints_listed = True
        self._rebuild()

    def apply_routes(self, routes: Routes) -> None:
        """Use this routes document from now on."""
        before = {weight.revision for weight in self._routes.weights} if self._routes else set()
        now = {weight.revision for weight in routes.weights}
        for revision in before - now:
            self._metrics.revision_requests.forget(revision)
            del self._attempts[revision]
            del self._errors[revision]
        for revision in now - before:
            self._metrics.revision_requests.inc(revision, by=0)
        self._routes = routes
        self._routes_readable = True
        self._rebuild()

    def routes_unreadable(self) -> None:
        """The document cannot be read: keep the last good one and say so in the report."""
        self._routes_readable = False
        self._rebuild()

    def choose(
        self, model: str | None, key: bytes, now_s: float, tried: Collection[EndpointState]
    ) -> policy.Choice | policy.Refusal:
        """Where a request goes now."""
        return policy.choose(self.view, model, key, now_s, tried)

    def dispatch(self, state: EndpointState, now_s: float) -> Lease:
        """Charge a request to an endpoint; the caller closes the lease on every path."""
        self._picks += 1
        state.last_pick = self._picks
        state.breaker.dispatched(now_s)
        self._attempts[state.endpoint.revision] += 1
        self._metrics.revision_requests.inc(state.endpoint.revision)
        return state.ledger.open()

    def failed(self, state: EndpointState) -> None:
        """Count an attempt that an engine failed: no answer, a cut one, or a 5xx."""
        self._errors[state.endpoint.revision] += 1

    def report(self, now_s: float) -> RouterReport:
        """What the operator reads back, with attempts and errors of each revision in the routes."""
        weights = self._routes.weights if self._routes else ()
        counted = tuple(
            RevisionReport(item.revision, self._attempts[item.revision], self._errors[item.revision])
            for item in weights
        )
        return replace(self.view.report(now_s), revisions=counted)

    def gauge(self, now_s: float) -> None:
        """Bring the gauges up to date; called before each scrape."""
        states = self.view.endpoints
        gauges = self._metrics.endpoints
        gauges.set(len(states), "known")
        gauges.set(sum(state.routable for state in states), "routable")
        gauges.set(sum(state.draining or state.terminating for state in states), "draining")
        gauges.set(sum(state.breaker.blocks(now_s) for state in states), "held")
        self._metrics.epoch.set(self._routes.epoch if self._routes else 0)
        self._metrics.synced.set(self.view.synced)

    def _rebuild(self) -> None:
        synced = self._endpoints_listed and self._routes_readable
        self.view = make_view(self._routes, tuple(self._states.values()), synced=synced)
