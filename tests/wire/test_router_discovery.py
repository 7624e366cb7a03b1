"""The router follows EndpointSlices and its routes ConfigMap, and outlives the API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fake_watch import CONFIG_MAPS, SLICES, FakeWatch, routes_map, slice_of
from forebay.router.discovery import follow_kubernetes
from forebay.router.fleet import Fleet
from forebay.router.metrics import Metrics
from router_build import on_uvloop, settings, until


@asynccontextmanager
async def following(api: FakeWatch, tmp_path: Path) -> AsyncIterator[tuple[Fleet, Metrics]]:
    """A fleet that follows the API server, with the server's current token in its file."""
    token = tmp_path / "token"
    token.write_text(api.token)
    metrics = Metrics()
    fleet = Fleet(metrics, lambda _: None)
    chosen = settings(apiserver=api.url, deployment="dep", namespace="ns", token_file=token, ca_file=None)
    task = asyncio.create_task(follow_kubernetes(chosen, fleet, metrics))
    try:
        yield fleet, metrics
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def known(fleet: Fleet) -> set[tuple[str, str, str]]:
    return {(s.endpoint.pod, s.endpoint.address, s.endpoint.revision) for s in fleet.view.endpoints}


def epoch(fleet: Fleet) -> int:
    return fleet.view.routes.epoch if fleet.view.routes else 0


@on_uvloop
async def test_endpoints_and_routes_arrive_and_change(tmp_path: Path) -> None:
    async with FakeWatch() as api, following(api, tmp_path) as (fleet, metrics):
        await until(lambda: api.watching == 2)
        assert not fleet.view.synced
        api.put(CONFIG_MAPS, routes_map(1, ("aa", 1)))
        api.put(SLICES, slice_of("aa", ("p1", "10.0.0.1"), ("p2", "10.0.0.2")))
        await until(lambda: fleet.view.synced and len(known(fleet)) == 2)
        assert known(fleet) == {("p1", "10.0.0.1:8000", "aa"), ("p2", "10.0.0.2:8000", "aa")}
        api.put(SLICES, slice_of("bb", ("p3", "fd00::3")))
        api.put(CONFIG_MAPS, routes_map(2, ("aa", 0), ("bb", 1)))
        await until(lambda: epoch(fleet) == 2 and ("p3", "[fd00::3]:8000", "bb") in known(fleet))
        api.put(SLICES, slice_of("aa", ("p1", "10.0.0.1"), terminating=True, ready=False))
        await until(lambda: not any(s.routable for s in fleet.view.by_revision["aa"]))
        api.delete(SLICES, "slice-aa")
        await until(lambda: "aa" not in fleet.view.by_revision)
        report = fleet.view.report(0.0)
        assert (report.epoch, report.synced) == (2, True)
        assert [(e.pod, e.routable) for e in report.endpoints] == [("p3", True)]
        assert metrics.discovery_up.values[("endpoints",)] == 1


@on_uvloop
async def test_it_asks_only_for_its_own_objects_with_get(tmp_path: Path) -> None:
    async with FakeWatch() as api, following(api, tmp_path):
        await until(lambda: api.watching == 2)
        slices = [seen for seen in api.seen if seen["path"] == SLICES]
        maps = [seen for seen in api.seen if seen["path"] == CONFIG_MAPS]
        assert all(s["labelSelector"] == "forebay.dev/deployment=dep,forebay.dev/role=engine" for s in slices)
        assert all(m["fieldSelector"] == "metadata.name=dep-routes" for m in maps)
        assert [seen.get("watch") for seen in slices] == [None, "true"]


@on_uvloop
async def test_an_event_that_was_lost_is_made_up_by_the_list_after_a_break(tmp_path: Path) -> None:
    async with FakeWatch() as api, following(api, tmp_path) as (fleet, _):
        api.put(SLICES, slice_of("aa", ("p1", "10.0.0.1")))
        api.put(CONFIG_MAPS, routes_map(1, ("aa", 1)))
        await until(lambda: fleet.view.synced and api.watching == 2)
        with api.muted():
            api.put(SLICES, slice_of("aa", ("p9", "10.0.0.9")))
            api.put(CONFIG_MAPS, routes_map(7, ("aa", 1)))
        api.break_watches()
        await until(lambda: epoch(fleet) == 7 and known(fleet) == {("p9", "10.0.0.9:8000", "aa")})


@on_uvloop
async def test_an_expired_version_leads_to_a_new_list(tmp_path: Path) -> None:
    async with FakeWatch() as api, following(api, tmp_path) as (fleet, _):
        await until(lambda: api.watching == 2)
        before = api.lists(SLICES)
        with api.muted():
            api.put(SLICES, slice_of("aa", ("p1", "10.0.0.1")))
        api.send(SLICES, {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}})
        await until(lambda: len(known(fleet)) == 1)
        assert api.lists(SLICES) == before + 1


@on_uvloop
async def test_the_last_known_state_stays_while_the_api_server_is_away(tmp_path: Path) -> None:
    async with FakeWatch() as api, following(api, tmp_path) as (fleet, metrics):
        api.put(SLICES, slice_of("aa", ("p1", "10.0.0.1")))
        api.put(CONFIG_MAPS, routes_map(3, ("aa", 1)))
        await until(lambda: fleet.view.synced and api.watching == 2)
        port = api.port
        await api.stop()
        await until(lambda: metrics.discovery_errors.values[("endpoints",)] >= 2)
        assert metrics.discovery_up.values[("endpoints",)] == 0
        assert (epoch(fleet), len(known(fleet)), fleet.view.synced) == (3, 1, True)
        api.objects[SLICES]["slice-aa"] = slice_of("aa", ("p2", "10.0.0.2"))
        await api.start(port)
        await until(lambda: known(fleet) == {("p2", "10.0.0.2:8000", "aa")}, deadline_s=8)


@on_uvloop
async def test_a_rotated_token_is_used_for_the_next_request(tmp_path: Path) -> None:
    async with FakeWatch() as api, following(api, tmp_path) as (fleet, metrics):
        await until(lambda: api.watching == 2)
        api.token = "rotated"
        api.break_watches()
        await until(lambda: metrics.discovery_errors.values[("endpoints",)] >= 1)
        (tmp_path / "token").write_text("rotated\n")
        api.put(SLICES, slice_of("aa", ("p1", "10.0.0.1")))
        await until(lambda: len(known(fleet)) == 1, deadline_s=8)


@on_uvloop
async def test_a_document_it_cannot_read_changes_nothing_and_is_reported(tmp_path: Path) -> None:
    async with FakeWatch() as api, following(api, tmp_path) as (fleet, _):
        api.put(SLICES, slice_of("aa", ("p1", "10.0.0.1")))
        api.put(CONFIG_MAPS, routes_map(1, ("aa", 1)))
        await until(lambda: fleet.view.synced)
        broken = routes_map(2, ("aa", 1))
        broken["data"]["routes.json"] = '{"version": 99}'
        api.put(CONFIG_MAPS, broken)
        await until(lambda: not fleet.view.synced)
        assert (epoch(fleet), fleet.view.report(0.0).synced) == (1, False)
        api.delete(CONFIG_MAPS, "dep-routes")
        api.put(CONFIG_MAPS, routes_map(4, ("aa", 1)))
        await until(lambda: fleet.view.synced and epoch(fleet) == 4)


@on_uvloop
async def test_a_refused_list_says_what_is_missing_and_goes_on_trying(tmp_path: Path) -> None:
    async with FakeWatch() as api:
        api.refuse_with = 403
        async with following(api, tmp_path) as (fleet, metrics):
            await until(lambda: metrics.discovery_errors.values[("routes",)] >= 2)
            api.refuse_with = 0
            api.put(CONFIG_MAPS, routes_map(1, ("aa", 1)))
            await until(lambda: epoch(fleet) == 1, deadline_s=8)


@pytest.mark.parametrize(
    "event", [{"type": "ADDED"}, {"type": "ADDED", "object": {"metadata": 7}}, {"object": {}}, {}, {"type": 1}], ids=str
)
@on_uvloop
async def test_an_event_without_the_shape_of_its_kind_breaks_the_watch_and_nothing_else(
    tmp_path: Path, event: dict[str, Any]
) -> None:
    async with FakeWatch() as api, following(api, tmp_path) as (fleet, metrics):
        await until(lambda: api.watching == 2)
        api.send(SLICES, event)
        await until(lambda: metrics.discovery_errors.values[("endpoints",)] == 1)
        api.put(SLICES, slice_of("aa", ("p1", "10.0.0.1")))
        await until(lambda: len(known(fleet)) == 1)
