"""Where requests go: load, weights, breakers, cool-off, retries."""

import pytest

from forebay.contract.wire import LoadReport, Routes, RouteWeight
from forebay.router.breaker import BreakerLimits
from forebay.router.policy import Choice, Refusal, choose
from forebay.router.retry import Failure, RetryBudget, Verdict, avoid_s, classify_loss, classify_status, decide
from forebay.router.split import pick_revision
from forebay.router.view import ClusterView, Endpoint, EndpointState, make_view

NOW_S = 100.0


def state(pod: str, revision: str = "aa", *, ready: bool = True, terminating: bool = False) -> EndpointState:
    made = EndpointState(Endpoint(pod, "10.0.0.1", 8000, revision), BreakerLimits())
    made.discovered(ready=ready, terminating=terminating)
    return made


def report(running: int = 0, waiting: int = 0, **changes: object) -> LoadReport:
    fields: dict[str, object] = {
        "engine_id": "e",
        "running": running,
        "waiting": waiting,
        "pending_prefill_tokens": 0,
        "kv_pages_used": 0,
        "kv_pages_total": 100,
        "max_running": 8,
        "prefill_tokens_per_s": 1000.0,
        "decode_tokens_per_s": 50.0,
        "draining": False,
        **changes,
    }
    return LoadReport(**fields)  # type: ignore[arg-type]  # fields by name, as in the wire shape


def view(*states: EndpointState, weights: dict[str, int] | None = None) -> ClusterView:
    chosen = weights or {made.endpoint.revision: 1 for made in states}
    routes = Routes(1, ("m", "alias"), tuple(RouteWeight(revision, weight) for revision, weight in chosen.items()))
    return make_view(routes, states, synced=True)


def target(chosen: Choice | Refusal) -> str:
    assert isinstance(chosen, Choice)
    return chosen.target.endpoint.pod


def test_the_engine_with_fewer_requests_by_its_report_is_chosen() -> None:
    a, b = state("a"), state("b")
    a.reported(report(running=5), NOW_S)
    b.reported(report(running=2, waiting=1), NOW_S)
    assert target(choose(view(a, b), "m", b"k", NOW_S)) == "b"


def test_own_dispatches_since_the_report_count_on_top() -> None:
    a, b = state("a"), state("b")
    a.reported(report(running=2), NOW_S)
    b.reported(report(running=1), NOW_S)
    leases = [b.ledger.open() for _ in range(2)]
    assert target(choose(view(a, b), "m", b"k", NOW_S)) == "a"
    for lease in leases:
        lease.close()
    assert target(choose(view(a, b), "m", b"k", NOW_S)) == "b"


def test_requests_that_ended_since_the_report_count_no_more() -> None:
    a, b = state("a"), state("b")
    lease = a.ledger.open()
    a.ledger.poll_started()
    a.reported(report(running=2), NOW_S)
    b.reported(report(running=1, waiting=1), NOW_S)
    lease.close()
    assert target(choose(view(a, b), "m", b"k", NOW_S)) == "a"


def test_a_bigger_engine_takes_more() -> None:
    small, big = state("a"), state("b")
    small.reported(report(running=3, max_running=4), NOW_S)
    big.reported(report(running=8, max_running=32), NOW_S)
    assert target(choose(view(small, big), "m", b"k", NOW_S)) == "b"


def test_queued_prefill_and_then_kv_use_break_ties() -> None:
    a, b = state("a"), state("b")
    a.reported(report(running=1, pending_prefill_tokens=4000), NOW_S)
    b.reported(report(running=1, pending_prefill_tokens=100, kv_pages_used=90), NOW_S)
    assert target(choose(view(a, b), "m", b"k", NOW_S)) == "b"
    a.reported(report(running=1, pending_prefill_tokens=100, kv_pages_used=10), NOW_S)
    assert target(choose(view(a, b), "m", b"k", NOW_S)) == "a"


def test_a_stale_report_is_ignored() -> None:
    a, b = state("a"), state("b")
    a.reported(report(running=8), NOW_S - 60)
    b.ledger.open()
    assert target(choose(view(a, b), "m", b"k", NOW_S)) == "a"


def test_equal_engines_take_turns() -> None:
    states = [state(pod) for pod in "abc"]
    seen = []
    for turn in range(6):
        chosen = choose(view(*states), "m", b"k", NOW_S)
        assert isinstance(chosen, Choice)
        chosen.target.last_pick = turn + 1
        seen.append(target(chosen))
    assert seen == ["a", "b", "c", "a", "b", "c"]


@pytest.mark.parametrize("change", ["not ready", "terminating", "draining by its report"])
def test_an_engine_that_takes_nothing_new_gets_nothing_new(change: str) -> None:
    a, b = state("a"), state("b")
    b.ledger.open()
    match change:
        case "not ready":
            a.discovered(ready=False, terminating=False)
        case "terminating":
            a.discovered(ready=True, terminating=True)
        case _:
            a.reported(report(draining=True), NOW_S)
    assert target(choose(view(a, b), "m", b"k", NOW_S)) == "b"
    assert choose(view(a), "m", b"k", NOW_S) is Refusal.NO_ENDPOINT


def test_names_that_are_not_served_are_unknown_even_without_endpoints() -> None:
    assert choose(view(state("a")), "other", b"", NOW_S) is Refusal.UNKNOWN_MODEL
    assert choose(view(weights={"aa": 1}), "other", b"", NOW_S) is Refusal.UNKNOWN_MODEL
    assert choose(view(weights={"aa": 1}), "m", b"", NOW_S) is Refusal.NO_ENDPOINT
    assert choose(ClusterView(), "m", b"", NOW_S) is Refusal.NO_ENDPOINT
    assert isinstance(choose(view(state("a")), "alias", b"", NOW_S), Choice)
    assert isinstance(choose(view(state("a")), None, b"", NOW_S), Choice)


def test_a_revision_without_weight_gets_nothing_even_alone() -> None:
    assert choose(view(state("a", "aa"), weights={"aa": 0}), "m", b"", NOW_S) is Refusal.NO_ENDPOINT
    assert choose(view(state("a", "aa"), weights={"bb": 1}), "m", b"", NOW_S) is Refusal.NO_ENDPOINT


def test_a_revision_without_endpoints_leaves_its_share_to_the_others() -> None:
    only_old = view(state("a", "old"), weights={"old": 1, "new": 99})
    assert all(target(choose(only_old, "m", b"%d" % n, NOW_S)) == "a" for n in range(50))


def test_a_retry_stays_in_its_revision_and_then_takes_another() -> None:
    a, b, c = state("a", "old"), state("b", "old"), state("c", "new")
    both = view(a, b, c, weights={"old": 99, "new": 1})
    key = next(
        b"%d" % n for n in range(100) if pick_revision(both.routes.weights if both.routes else (), b"%d" % n) == "old"
    )
    assert target(choose(both, "m", key, NOW_S, [a])) == "b"
    assert target(choose(both, "m", key, NOW_S, [a, b])) == "c"
    assert choose(both, "m", key, NOW_S, [a, b, c]) is Refusal.NO_ENDPOINT


def test_an_open_breaker_is_avoided_until_its_time_is_over_and_then_probed() -> None:
    a, b = state("a"), state("b")
    for _ in range(3):
        a.breaker.failed(NOW_S)
    b.ledger.open()
    assert target(choose(view(a, b), "m", b"", NOW_S)) == "b"
    assert target(choose(view(a, b), "m", b"", NOW_S + 1.5)) == "a"
    a.breaker.dispatched(NOW_S + 1.5)
    assert target(choose(view(a, b), "m", b"", NOW_S + 1.5)) == "b"
    a.breaker.failed(NOW_S + 1.6)
    assert target(choose(view(a, b), "m", b"", NOW_S + 3.0)) == "b"
    a.breaker.dispatched(NOW_S + 4.0)
    a.breaker.succeeded()
    assert target(choose(view(a, b), "m", b"", NOW_S + 4.0)) == "a"


def test_an_engine_that_asked_for_time_is_used_only_when_no_other_is_left() -> None:
    a, b = state("a"), state("b")
    a.avoid(NOW_S + 7)
    b.ledger.open()
    assert target(choose(view(a, b), "m", b"", NOW_S)) == "b"
    assert target(choose(view(a, b), "m", b"", NOW_S, [b])) == "a"
    assert target(choose(view(a, b), "m", b"", NOW_S + 8)) == "a"


@pytest.mark.parametrize(
    ("failure", "retried"),
    [
        (Failure.CONNECT, True),
        (Failure.RESET_REUSED, True),
        (Failure.STATUS_429, True),
        (Failure.STATUS_502, True),
        (Failure.STATUS_503, True),
        (Failure.RESET, False),
        (Failure.BAD_RESPONSE, False),
        (Failure.FIRST_BYTE_TIMEOUT, False),
        (Failure.STALL, False),
    ],
)
def test_only_failures_that_started_nothing_are_retried(failure: Failure, retried: bool) -> None:
    verdict = decide(failure, (), bytes_sent=False, budget=RetryBudget())
    assert verdict is (Verdict.RETRY if retried else Verdict.GIVE_UP)
    assert decide(failure, (), bytes_sent=True, budget=RetryBudget()) is Verdict.GIVE_UP


@pytest.mark.parametrize("status", [200, 301, 400, 401, 403, 404, 408, 409, 413, 422, 500, 501, 504])
def test_statuses_that_are_answers_are_kept(status: int) -> None:
    assert classify_status(status, not_begun=False) is None
    assert classify_status(status, not_begun=True) is None


def test_a_503_is_a_failure_to_repeat_only_when_the_engine_says_it_has_not_begun() -> None:
    assert classify_status(503, not_begun=True) is Failure.STATUS_503
    assert classify_status(502, not_begun=True) is Failure.STATUS_502
    assert classify_status(503, not_begun=False) is None
    assert classify_status(502, not_begun=False) is None
    assert classify_status(429, not_begun=False) is Failure.STATUS_429


def test_a_lost_connection_is_an_idle_race_only_when_reused_and_at_once() -> None:
    assert classify_loss(reused=True, elapsed_s=0.01) is Failure.RESET_REUSED
    assert classify_loss(reused=True, elapsed_s=5.0) is Failure.RESET
    assert classify_loss(reused=False, elapsed_s=0.01) is Failure.RESET


@pytest.mark.parametrize(
    ("failure", "retry_after_s", "expected_s"),
    [
        (Failure.STATUS_503, None, 1.0),
        (Failure.STATUS_503, 7.0, 7.0),
        (Failure.STATUS_503, 86400.0, 60.0),
        (Failure.STATUS_429, None, 0.0),
        (Failure.STATUS_429, 3.0, 3.0),
        (Failure.CONNECT, None, 1.0),
        (Failure.RESET, None, 0.0),
    ],
)
def test_retry_after_is_honoured_up_to_a_minute(
    failure: Failure, retry_after_s: float | None, expected_s: float
) -> None:
    assert avoid_s(failure, retry_after_s) == expected_s
