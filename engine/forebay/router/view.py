"""What the router knows about its engines, as values that `policy` reads.

`ClusterView` is frozen and replaced as a whole when discovery changes something; the `EndpointState` objects it holds
carry the numbers that move with each request (leases, breaker, last load report). Unknown facts never make an endpoint
better: without a load report its load is the router's own in-flight count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay.contract.wire import EndpointReport, LoadReport, RouterReport, Routes
from forebay.router.breaker import Breaker, BreakerLimits
from forebay.router.leases import Ledger

LOAD_STALE_S = 5.0
"""A load report older than this is ignored."""


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """The identity of one engine: a pod name with an address, so that a reused address is a new endpoint."""

    pod: str
    host: str
    port: int
    revision: str

    @property
    def address(self) -> str:
        """host:port, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Discovered:
    """One endpoint as discovery reports it; a terminating one finishes what it has."""

    endpoint: Endpoint
    ready: bool
    terminating: bool


class EndpointState:
    """One endpoint and the numbers that move with each request."""

    __slots__ = (
        "avoid_until_s",
        "breaker",
        "draining",
        "endpoint",
        "last_pick",
        "ledger",
        "ready",
        "routable",
        "terminating",
    )

    def __init__(self, endpoint: Endpoint, limits: BreakerLimits) -> None:
        self.endpoint = endpoint
        self.ready = False
        self.terminating = False
        self.draining = False
        self.routable = False
        self.avoid_until_s = 0.0
        self.last_pick = 0
        self.ledger = Ledger()
        self.breaker = Breaker(limits)

    def discovered(self, *, ready: bool, terminating: bool) -> None:
        """What discovery says about the endpoint now."""
        self.ready = ready
        self.terminating = terminating
        self._weigh()

    def avoid(self, until_s: float) -> None:
        """Prefer others until then: it refused a connection, or asked for time with Retry-After."""
        self.avoid_until_s = max(self.avoid_until_s, until_s)

    def reported(self, report: LoadReport, now_s: float) -> None:
        """The engine's answer to the last load poll."""
        self.ledger.poll_answered(report, now_s)
        self.draining = report.draining
        self._weigh()

    def _weigh(self) -> None:
        # New requests may go here at all; breakers and cool-off times are a matter of preference.
        self.routable = self.ready and not self.terminating and not self.draining


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All that a routing decision depends on. `routes` is None before the first routes document was applied."""

    routes: Routes | None = None
    endpoints: tuple[EndpointState, ...] = ()
    synced: bool = False
    by_revision: Mapping[str, tuple[EndpointState, ...]] = field(default_factory=dict)

    def report(self, now_s: float) -> RouterReport:
        """What the operator reads back: the epoch in use and every known endpoint, sorted.

        `routable` does not depend on weights: the operator needs it to be true before it gives a revision weight.
        """
        return RouterReport(
            epoch=self.routes.epoch if self.routes else 0,
            synced=self.synced,
            endpoints=tuple(
                EndpointReport(
                    address=state.endpoint.address,
                    pod=state.endpoint.pod,
                    revision=state.endpoint.revision,
                    ready=state.ready,
                    routable=state.routable,
                    inflight=state.ledger.inflight,
                    load_age_s=None if state.ledger.report is None else round(now_s - state.ledger.report_s, 3),
                )
                for state in self.endpoints
            ),
        )


def make_view(routes: Routes | None, endpoints: tuple[EndpointState, ...], *, synced: bool) -> ClusterView:
    """A view with its endpoints in a stable order and grouped by revision."""
    ordered = tuple(sorted(endpoints, key=lambda state: state.endpoint))
    groups: dict[str, list[EndpointState]] = {}
    for state in ordered:
        groups.setdefault(state.endpoint.revision, []).append(state)
    return ClusterView(routes, ordered, synced, {revision: tuple(states) for revision, states in groups.items()})
