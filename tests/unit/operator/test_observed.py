"""Counts over pods and router reports: only ours, only what takes traffic, and silence is never a yes."""

from dataclasses import replace

import operator_build as build
from forebay.contract.wire import RouterReport
from forebay.operator.desired.metadata import owner_of
from forebay.operator.observed import Observed, PodCounts, read_observed

OWNER = owner_of(build.deployment())
ENGINE = build.pod("e1", "engine", "a")
ROUTERS = (build.pod("r1", "router", "x"), build.pod("r2", "router", "x"))


def _observed(*reports: RouterReport | None) -> Observed:
    routers = tuple(build.router(f"r{n}", report) for n, report in enumerate(reports, start=1))
    return read_observed(build.snapshot(pods=(*ROUTERS[: len(reports)], ENGINE), routers=routers), OWNER)


def test_pods_are_counted_by_what_they_are_doing() -> None:
    pods = (
        ENGINE,
        build.pod("e2", "engine", "a", ready=False),
        build.pod("e3", "engine", "a", terminating=True),
        build.pod("e4", "engine", "b"),
        build.pod("e5", "engine", "a", status={"phase": "Failed"}),
    )
    observed = read_observed(build.snapshot(pods=pods), OWNER)
    assert observed.counts(observed.engines, "a") == PodCounts(live=2, ready=1, draining=1)
    assert observed.counts(observed.engines) == PodCounts(live=3, ready=2, draining=1)


def test_pods_of_an_earlier_deployment_of_that_name_do_not_count() -> None:
    observed = read_observed(build.snapshot(pods=(ENGINE,)), replace(OWNER, uid="other"))
    assert observed.engines == ()


def test_a_pod_is_routable_when_every_router_says_so_and_it_is_ready() -> None:
    yes = build.report(1, build.endpoint("e1", "a"), build.endpoint("gone", "a"))
    no = build.report(1, build.endpoint("e1", "a", routable=False))
    assert _observed(yes, yes).routable_by_all("a") == 1
    assert _observed(yes, no).routable_by_all("a") == 0
    assert _observed(yes, no).routable_by_any("a") == 1
    assert _observed(yes, yes).routable_by_all("b") == 0


def test_a_router_that_does_not_answer_makes_nothing_routable_and_confirms_nothing() -> None:
    yes = build.report(3, build.endpoint("e1", "a"))
    assert _observed(yes, None).routable_by_all("a") == 0
    assert not _observed(yes, None).confirms(3)
    assert _observed(yes, None).missing == ("r2",)
    assert _observed(yes, None).routable_by_any("a") == 1


def test_routes_are_confirmed_by_all_routers_at_that_epoch_or_a_later_one() -> None:
    assert _observed(build.report(3), build.report(4)).confirms(3)
    assert not _observed(build.report(3), build.report(4)).confirms(4)
    assert not _observed(build.report(3, synced=False)).confirms(3)
    assert not _observed().confirms(0)


def test_a_router_that_takes_no_traffic_has_no_vote_while_another_does() -> None:
    starting = build.pod("r2", "router", "x", ready=False)
    routers = (build.router("r1", build.report(2)), build.router("r2", build.report(1)))
    observed = read_observed(build.snapshot(pods=(ROUTERS[0], starting), routers=routers), OWNER)
    assert observed.confirms(2)


def test_while_no_router_takes_traffic_each_that_answers_has_a_vote() -> None:
    starting = build.pod("r1", "router", "x", ready=False)
    report = build.report(2, build.endpoint("e1", "a"))
    observed = read_observed(build.snapshot(pods=(starting, ENGINE), routers=(build.router("r1", report),)), OWNER)
    assert observed.confirms(2)
    assert observed.routable_by_all("a") == 1


def test_requests_on_a_revision_are_summed_over_all_routers() -> None:
    one = build.report(1, build.endpoint("e1", "a", inflight=2), build.endpoint("e9", "b", inflight=5))
    assert _observed(one, one).inflight("a") == 4
