"""What the gates of a step say now, from router counters, approvals and the clock. Pure.

Errors are compared as rates since the step's traffic was confirmed. A candidate fails only when its rate is bad beyond
chance: the lower end of its interval is above what is acceptable. A router that does not answer, or whose counters are
unknown, holds the gate: what cannot be asked never passes.
"""

import math
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

from forebay.api.rollout import ErrorsGate, Gate, WindowGate
from forebay.operator.rollout.gates import GateResult, Verdict
from forebay.operator.rollout.record import Counters

Z: Final = 1.96
"""Normal quantile of a two-sided 95 % interval."""
MAX_RATE_PERCENT: Final = 1.0
MAX_RATIO: Final = 1.5
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def evaluate(
    gates: Iterable[Gate],
    *,
    stable: str,
    candidate: str,
    baseline: Collection[Counters],
    counters: Collection[Counters] | None,
    approved: bool,
    now: datetime,
) -> tuple[GateResult, ...]:
    """One result for each gate, in order. `counters` None: a router that takes traffic did not answer."""
    results = []
    for gate in gates:
        if gate.errors is not None:
            results.append(_errors(gate.name, gate.errors, stable, candidate, baseline, counters))
        elif gate.window is not None:
            results.append(_window(gate.name, gate.window, now))
        else:
            text = "approved" if approved else "waiting for a RolloutAction with verb approve"
            results.append(GateResult(gate.name, Verdict.PASS if approved else Verdict.HOLD, text))
    return tuple(results)


def _errors(
    name: str,
    settings: ErrorsGate,
    stable: str,
    candidate: str,
    baseline: Collection[Counters],
    counters: Collection[Counters] | None,
) -> GateResult:
    if counters is None:
        return GateResult(name, Verdict.HOLD, "a router does not answer, so its errors are not known")
    requests, errors = since(baseline, counters, candidate)
    stable_requests, stable_errors = since(baseline, counters, stable)
    rate = errors / requests if requests else 0.0
    stable_rate = stable_errors / stable_requests if stable_requests else 0.0
    max_rate = MAX_RATE_PERCENT if settings.max_rate_percent is None else settings.max_rate_percent
    allowed = max(max_rate / 100, (settings.max_ratio or MAX_RATIO) * stable_rate)
    evidence = (
        ("candidateRequests", float(requests)),
        ("candidateErrors", float(errors)),
        ("stableRequests", float(stable_requests)),
        ("stableErrors", float(stable_errors)),
        ("allowedPercent", allowed * 100),
    )
    seen = f"{errors} of {requests} requests on the candidate failed, {stable_errors} of {stable_requests} on stable"
    if lower_bound(errors, requests) > allowed:
        return GateResult(name, Verdict.FAIL, f"{seen}; {allowed:.2%} is allowed", evidence)
    needed = settings.min_requests or 0
    if requests < needed:
        return GateResult(name, Verdict.INCONCLUSIVE, f"{seen}; the gate needs {needed} requests", evidence)
    if rate > allowed:
        return GateResult(name, Verdict.INCONCLUSIVE, f"{seen}; too few to tell from chance", evidence)
    return GateResult(name, Verdict.PASS, seen, evidence)


def since(baseline: Collection[Counters], counters: Collection[Counters], revision: str) -> tuple[int, int]:
    """(requests, errors) of a revision since the baseline, over all routers; a router that restarted counts from 0."""
    before = {item.router: item for item in baseline if item.revision == revision}
    requests = errors = 0
    for item in counters:
        if item.revision != revision:
            continue
        old = before.get(item.router)
        if old is None or item.requests < old.requests or item.errors < old.errors:
            old = Counters(item.router, revision, 0, 0)
        requests += item.requests - old.requests
        errors += item.errors - old.errors
    return requests, errors


def lower_bound(errors: int, requests: int) -> float:
    """Lower end of the Wilson score interval of a rate (Wilson, 1927); 0 without requests."""
    if requests == 0:
        return 0.0
    rate, square = errors / requests, Z * Z
    centre = rate + square / (2 * requests)
    spread = Z * math.sqrt(rate * (1 - rate) / requests + square / (4 * requests * requests))
    return max(0.0, (centre - spread) / (1 + square / requests))


def _window(name: str, window: WindowGate, now: datetime) -> GateResult:
    inside = _DAYS[now.weekday()] in window.days and window.from_hour <= now.hour < window.to_hour
    text = f"open {', '.join(window.days)} from {window.from_hour}:00 to {window.to_hour}:00 UTC"
    return GateResult(name, Verdict.PASS if inside else Verdict.HOLD, text)
