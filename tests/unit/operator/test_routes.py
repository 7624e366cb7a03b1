"""The routes ConfigMap as the operator's memory: what it wrote it reads back, what others wrote it does not believe."""

import copy
import json
from typing import Any

import operator_build as build
from forebay.contract.wire import Routes, RouteWeight, parse_routes
from forebay.operator.desired.metadata import owner_of
from forebay.operator.desired.routes import RecordedRoutes, read_routes, routes_object

OWNER = owner_of(build.deployment())
RECORDED = RecordedRoutes(Routes(4, ("chat", "tiny"), (RouteWeight("abc", 100),)), build.NOW)


def _written() -> dict[str, Any]:
    return copy.deepcopy(routes_object(OWNER, RECORDED))


def test_what_was_written_is_read_back() -> None:
    assert read_routes([_written()], OWNER) == RECORDED


def test_a_router_reads_the_same_routes() -> None:
    assert parse_routes(json.loads(_written()["data"]["routes.json"])) == RECORDED.routes


def test_an_edited_document_is_not_believed() -> None:
    edited = _written()
    edited["data"]["routes.json"] = edited["data"]["routes.json"].replace("abc", "xyz")
    assert read_routes([edited], OWNER) is None


def test_a_document_without_data_time_or_annotations_is_not_believed() -> None:
    empty, timeless, bare = _written(), _written(), _written()
    del empty["data"]
    timeless["metadata"]["annotations"]["forebay.dev/routes-since"] = "yesterday"
    del bare["metadata"]["annotations"]
    assert [read_routes([item], OWNER) for item in (empty, timeless, bare)] == [None, None, None]


def test_another_config_map_is_not_taken_for_routes() -> None:
    other = _written()
    other["metadata"]["name"] = "chat-engine-abc"
    assert read_routes([other], OWNER) is None
