"""Wire shapes between operator, router and engine, as frozen values with JSON round trips.

- `Routes`: written by the operator into a ConfigMap, read by the router.
- `RouterReport`: served by the router's admin port, read back by the operator.
- `LoadReport`: served by each engine, read by the router.

Readers ignore unknown fields (a newer writer may add some) and refuse a higher major `version`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from forebay.contract.errors import Incompatible, InvalidSpec
from forebay.contract.versions import LOAD_REPORT_VERSION, ROUTES_VERSION


@dataclass(frozen=True, slots=True)
class RouteWeight:
    """Share of traffic of one revision; weights are relative, 0 means no traffic."""

    revision: str
    weight: int


@dataclass(frozen=True, slots=True)
class Routes:
    """What a router routes to. `epoch` rises with every change the operator makes."""

    epoch: int
    models: tuple[str, ...]
    weights: tuple[RouteWeight, ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON document with sorted, stable content."""
        return {"version": ROUTES_VERSION, **asdict(self)}


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """One engine endpoint as the router sees it.

    `address` is host:port; `load_age_s` is None before the first load report.
    """

    address: str
    pod: str
    revision: str
    ready: bool
    routable: bool
    inflight: int
    load_age_s: float | None


@dataclass(frozen=True, slots=True)
class RevisionReport:
    """Attempts that the router made at a revision since it started, and those that failed: no answer, or a 5xx."""

    revision: str
    requests: int
    errors: int


@dataclass(frozen=True, slots=True)
class RouterReport:
    """A router's own view: the routes epoch it applied and every endpoint it knows.

    `revisions` is None from a router that does not count by revision.
    """

    epoch: int
    synced: bool
    endpoints: tuple[EndpointReport, ...]
    revisions: tuple[RevisionReport, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON document for the admin port."""
        return {"version": ROUTES_VERSION, **asdict(self)}


@dataclass(frozen=True, slots=True)
class LoadReport:
    """An engine's load at one instant. Rates are measured over the last seconds and 0 before the first step."""

    engine_id: str
    running: int
    waiting: int
    pending_prefill_tokens: int
    kv_pages_used: int
    kv_pages_total: int
    max_running: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    draining: bool

    def to_json(self) -> dict[str, Any]:
        """A JSON document for the load path."""
        return {"version": LOAD_REPORT_VERSION, **asdict(self)}


def parse_routes(document: Mapping[str, Any]) -> Routes:
    """Read a routes document; raises `Incompatible` for a newer version, `InvalidSpec` for a bad shape."""
    _check_version(document, ROUTES_VERSION, "routes")
    try:
        return Routes(
            epoch=int(document["epoch"]),
            models=tuple(str(name) for name in document["models"]),
            weights=tuple(RouteWeight(str(w["revision"]), int(w["weight"])) for w in document["weights"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidSpec(f"routes document has a bad or missing field: {error}", field="routes.json") from error


def parse_router_report(document: Mapping[str, Any]) -> RouterReport:
    """Read a router report; raises as `parse_routes`."""
    _check_version(document, ROUTES_VERSION, "router report")
    try:
        return RouterReport(
            epoch=int(document["epoch"]),
            synced=bool(document["synced"]),
            endpoints=tuple(_endpoint_report(item) for item in document["endpoints"]),
            revisions=_revision_reports(document.get("revisions")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidSpec(f"router report has a bad or missing field: {error}", field="endpoints") from error


def _revision_reports(items: Any) -> tuple[RevisionReport, ...] | None:
    if items is None:
        return None
    return tuple(RevisionReport(str(item["revision"]), int(item["requests"]), int(item["errors"])) for item in items)


def _endpoint_report(item: Mapping[str, Any]) -> EndpointReport:
    age = item.get("load_age_s")
    return EndpointReport(
        address=str(item["address"]),
        pod=str(item["pod"]),
        revision=str(item["revision"]),
        ready=bool(item["ready"]),
        routable=bool(item["routable"]),
        inflight=int(item["inflight"]),
        load_age_s=None if age is None else float(age),
    )


def parse_load_report(document: Mapping[str, Any]) -> LoadReport:
    """Read an engine's load report; raises as `parse_routes`."""
    _check_version(document, LOAD_REPORT_VERSION, "load report")
    try:
        return LoadReport(
            engine_id=str(document["engine_id"]),
            running=int(document["running"]),
            waiting=int(document["waiting"]),
            pending_prefill_tokens=int(document["pending_prefill_tokens"]),
            kv_pages_used=int(document["kv_pages_used"]),
            kv_pages_total=int(document["kv_pages_total"]),
            max_running=int(document["max_running"]),
            prefill_tokens_per_s=float(document["prefill_tokens_per_s"]),
            decode_tokens_per_s=float(document["decode_tokens_per_s"]),
            draining=bool(document["draining"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidSpec(f"load report has a bad or missing field: {error}", field="load") from error


def _check_version(document: Mapping[str, Any], supported: int, what: str) -> None:
    version = document.get("version")
    if not isinstance(version, int) or version > supported:
        raise Incompatible(f"{what} version {version!r} is not readable; this build reads up to {supported}")
