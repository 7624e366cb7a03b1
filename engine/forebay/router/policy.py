"""Where a request goes: a pure, total function of the view, the sticky key and the time.

Order of the decision: model known -> revision by weight and sticky key among revisions that have a routable endpoint ->
endpoints of that revision that were not tried yet -> breakers (at most half of the pool is held back) -> cool-off times
(a preference only) -> least loaded. A retry stays in its revision while that has another endpoint and then takes any
weighted one. Called by `exchange` for each dispatch.
"""

import enum
from collections.abc import Collection, Sequence
from typing import NamedTuple

from forebay.contract.wire import Routes, RouteWeight
from forebay.router.split import pick_revision
from forebay.router.view import LOAD_STALE_S, ClusterView, EndpointState


class Refusal(enum.Enum):
    """Why no endpoint was chosen."""

    UNKNOWN_MODEL = "unknown_model"
    NO_ENDPOINT = "no_endpoint"


class Choice(NamedTuple):
    """The endpoint to use and the revision it serves."""

    target: EndpointState
    revision: str


def choose(
    view: ClusterView,
    model: str | None,
    key: bytes,
    now_s: float,
    tried: Collection[EndpointState] = (),
) -> Choice | Refusal:
    """Pick an endpoint that is not in `tried`. `model` None means the request names none (any engine can judge it)."""
    routes = view.routes
    if routes is None:
        return Refusal.NO_ENDPOINT
    if model is not None and model not in routes.models:
        return Refusal.UNKNOWN_MODEL
    groups = _groups(view, routes, tried)
    if not groups:
        return Refusal.NO_ENDPOINT
    if len(groups) == 1:
        weight, group = groups[0]
        revision = weight.revision
    else:
        revision = pick_revision([weight for weight, _ in groups], key) or ""
        group = next(states for weight, states in groups if weight.revision == revision)
    target = least_loaded(_willing(group, view.by_revision[revision], now_s), now_s)
    return Choice(target, revision)


def _groups(
    view: ClusterView, routes: Routes, tried: Collection[EndpointState]
) -> list[tuple[RouteWeight, list[EndpointState]]]:
    """Weighted revisions with the endpoints that may take this request; revisions without any are left out."""
    groups = []
    for weight in routes.weights:
        if weight.weight > 0:
            states = [s for s in view.by_revision.get(weight.revision, ()) if s.routable and s not in tried]
            if states:
                groups.append((weight, states))
    return groups


def _willing(group: Sequence[EndpointState], pool: Sequence[EndpointState], now_s: float) -> Sequence[EndpointState]:
    """The group without endpoints held back by breakers, then without those that asked to be avoided.

    At most half of the pool is held back; those that would open soonest are let in again first.
    """
    held = [s for s in pool if not s.breaker.closed and s.routable and s.breaker.blocks(now_s)]
    if held:
        held.sort(key=lambda state: (-state.breaker.open_until_s, state.endpoint))
        blocked = held[: sum(state.routable for state in pool) // 2]
        group = [state for state in group if state not in blocked] or group
    return [state for state in group if state.avoid_until_s <= now_s] or group


def least_loaded(group: Sequence[EndpointState], now_s: float) -> EndpointState:
    """The endpoint with the least load for its size; ties go to the one picked longest ago."""
    if len(group) == 1:
        return group[0]
    return min(group, key=lambda state: (load_of(state, now_s), state.last_pick))


def load_of(state: EndpointState, now_s: float) -> tuple[float, float, float]:
    """(requests per running slot, seconds of queued prefill, share of KV pages in use), most important first."""
    ledger = state.ledger
    requests = ledger.load(now_s, LOAD_STALE_S)
    report = ledger.report
    if report is None or now_s - ledger.report_s > LOAD_STALE_S:
        return (float(requests), 0.0, 0.0)
    prefill_s = report.pending_prefill_tokens / report.prefill_tokens_per_s if report.prefill_tokens_per_s > 0 else 0.0
    return (
        requests / max(report.max_running, 1),
        prefill_s,
        report.kv_pages_used / max(report.kv_pages_total, 1),
    )
