"""Heads, bodies, slices, keys, settings and metric text: what is read, and what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fake_watch import routes_map, slice_of
from forebay.contract.errors import Incompatible, InvalidRequest, InvalidSpec, UpstreamFault
from forebay.contract.promtext import Registry
from forebay.router.body import read_body
from forebay.router.breaker import BreakerLimits
from forebay.router.config import parse
from forebay.router.heads import Framing, client_head, parse_response_head
from forebay.router.keys import KeySource
from forebay.router.slices import read_routes, read_slices, read_static
from forebay.router.upstream import IDLE_LIMIT_S, UpstreamConnection, UpstreamPool
from forebay.router.view import Endpoint, EndpointState


@pytest.mark.parametrize(
    ("head", "framing", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5", Framing.LENGTH, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0", Framing.EMPTY, True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nContent-Length: 5", Framing.LENGTH, True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked", Framing.CHUNKED, True),
        (b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\nConnection: close", Framing.CHUNKED, False),
        (b"HTTP/1.1 200 OK\r\nX: y", Framing.CLOSE, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5", Framing.LENGTH, False),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 5", Framing.EMPTY, True),
        (b"HTTP/1.1 304 Not Modified", Framing.EMPTY, True),
    ],
)
def test_the_end_of_an_answer_is_known_from_its_head(head: bytes, framing: Framing, keep_alive: bool) -> None:
    parsed = parse_response_head(head, to_head_request=False)
    assert (parsed.framing, parsed.keep_alive) == (framing, keep_alive)
    assert parse_response_head(head, to_head_request=True).framing is Framing.EMPTY


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/2 200 OK",
        b"HTTP/1.1 99 Low",
        b"HTTP/1.1 600 High",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nno colon",
        b"HTTP/1.1 200 OK\r\nname : value",
        b"HTTP/1.1 200 OK\r\n folded: value",
        b"HTTP/1.1 200 OK\r\nx: a\nb: c",
        b"HTTP/1.1 200 OK\r\nx: a\x00b",
    ],
)
def test_an_answer_in_doubt_is_a_fault_of_the_engine(head: bytes) -> None:
    with pytest.raises(UpstreamFault):
        parse_response_head(head, to_head_request=False)


def test_a_close_is_said_to_the_client_once() -> None:
    head = parse_response_head(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1", to_head_request=False)
    out = client_head(head, request_id=b"i", revision="r", endpoint="e", close=True, chunked=False)
    assert out.lower().count(b"connection:") == 1
    assert out.endswith(b"connection: close\r\n\r\n")


def test_retry_after_as_a_date_is_passed_on_and_taken_for_soon() -> None:
    head = parse_response_head(b"HTTP/1.1 503 x\r\nRetry-After: Wed, 21 Oct 2026 07:28:00 GMT", to_head_request=False)
    assert head.retry_after_s == 1.0
    assert head.lines == [b"Retry-After: Wed, 21 Oct 2026 07:28:00 GMT"]


def test_a_body_names_its_model_and_whether_it_streams() -> None:
    assert read_body(b'{"model":"m","stream":true}') == ("m", True)
    assert read_body(b'{"prompt":[1,2]}') == (None, False)
    assert read_body(b'{"model":null,"stream":"yes"}') == (None, False)
    assert read_body(b'{"model":"a","model":"b"}').model == "b"


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"{", b'{"model":1}', b"[" * 2000 + b"]" * 2000, b'{"a":\xff}'])
def test_a_body_that_cannot_be_read_is_the_clients_fault(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_body(body)


def test_slices_give_endpoints_with_their_conditions() -> None:
    plain = slice_of("aa", ("p1", "10.0.0.1"), ("p2", "10.0.0.2"))
    leaving = slice_of("bb", ("p3", "10.0.0.3"), ready=False, terminating=True)
    found = {item.endpoint.pod: item for item in read_slices([leaving, plain])}
    assert found["p1"].endpoint == Endpoint("p1", "10.0.0.1", 8000, "aa")
    assert (found["p1"].ready, found["p1"].terminating) == (True, False)
    assert (found["p3"].ready, found["p3"].terminating) == (False, True)


def test_an_unknown_readiness_means_ready_as_the_api_says() -> None:
    item = slice_of("aa", ("p1", "10.0.0.1"))
    item["endpoints"][0]["conditions"] = {}
    assert read_slices([item])[0].ready
    item["endpoints"][0]["conditions"] = None
    assert read_slices([item])[0].ready


def test_a_pod_in_two_slices_counts_once_and_the_ready_record_wins() -> None:
    first = slice_of("aa", ("p1", "10.0.0.1"), name="s1", ready=False)
    second = slice_of("aa", ("p1", "10.0.0.1"), name="s2")
    for order in ([first, second], [second, first]):
        [found] = read_slices(order)
        assert found.ready


@pytest.mark.parametrize("missing", ["labels", "ports", "endpoints", "addresses"])
def test_a_slice_without_what_is_needed_gives_nothing(missing: str) -> None:
    item = slice_of("aa", ("p1", "10.0.0.1"))
    match missing:
        case "labels":
            item["metadata"]["labels"] = None
        case "ports":
            item["ports"] = None
        case "endpoints":
            item["endpoints"] = None
        case _:
            item["endpoints"][0]["addresses"] = []
    assert read_slices([item]) == ()


def test_a_routes_map_is_read_and_a_bad_one_says_why() -> None:
    assert read_routes(routes_map(3, ("aa", 1))).epoch == 3
    for data, error in (
        (None, InvalidSpec),
        ({}, InvalidSpec),
        ({"routes.json": "{"}, InvalidSpec),
        ({"routes.json": "[]"}, InvalidSpec),
        ({"routes.json": '{"version": 99}'}, Incompatible),
        ({"routes.json": '{"version": 1, "epoch": 1}'}, InvalidSpec),
    ):
        with pytest.raises(error):
            read_routes({"data": data})


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"routes": {"version": 1, "epoch": 1, "models": [], "weights": []}},
        {"routes": {"version": 1, "epoch": 1, "models": [], "weights": []}, "endpoints": [{"address": "x"}]},
        {"routes": {"version": 1, "epoch": 1, "models": [], "weights": []}, "endpoints": ["x"]},
    ],
)
def test_a_bad_static_file_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        read_static(document)


def test_keys_ignore_the_links_of_a_mounted_secret(tmp_path: Path) -> None:
    data = tmp_path / "..2026_01"
    data.mkdir()
    (data / "alice").write_text("sk-1\n")
    (tmp_path / "..data").symlink_to(data)
    (tmp_path / "alice").symlink_to("..data/alice")
    (tmp_path / "empty").write_text("\n")
    keys = KeySource(tmp_path)
    assert keys.client(b"Bearer sk-1") == "alice"
    assert keys.client(b"Bearer ") is None
    assert keys.client(b"") is None
    assert not keys.open
    assert KeySource(None).open


def test_a_missing_key_directory_lets_nobody_in_until_it_is_there(tmp_path: Path) -> None:
    keys = KeySource(tmp_path / "later")
    assert not keys.open
    assert keys.client(b"Bearer sk-1") is None
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "alice").write_text("sk-1")
    keys.reload()
    assert keys.client(b"Bearer sk-1") == "alice"


def test_the_api_server_comes_from_the_pods_environment() -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    settings = parse(["--deployment", "d", "--namespace", "n"], environ)
    assert settings.apiserver == "https://[fd00::1]:6443"
    assert parse(["--static-routes", "f"], environ).apiserver is None
    with pytest.raises(InvalidSpec, match="API server"):
        parse(["--deployment", "d", "--namespace", "n"], {})
    with pytest.raises(InvalidSpec, match="--namespace"):
        parse(["--deployment", "d"], environ)
    with pytest.raises(SystemExit):
        parse(["--static-routes", "f", "--max-body-bytes", "0"], environ)


def test_metric_text_has_every_closed_series_from_the_start_and_escapes_values() -> None:
    registry = Registry()
    counter = registry.counter("x_total", "Things", {"kind": ("a", 'q"\\')})
    histogram = registry.histogram("y_seconds", "Times", (0.5, 1), {"kind": ("a",)})
    registry.gauge("z", "Computed").read_with(lambda: 2.5)
    dynamic = registry.counter("w_total", "By revision", {"revision": ()})
    assert registry.render().splitlines() == [
        "# HELP x_total Things",
        "# TYPE x_total counter",
        'x_total{kind="a"} 0',
        'x_total{kind="q\\"\\\\"} 0',
        "# HELP y_seconds Times",
        "# TYPE y_seconds histogram",
        'y_seconds_bucket{kind="a",le="0.5"} 0',
        'y_seconds_bucket{kind="a",le="1"} 0',
        'y_seconds_bucket{kind="a",le="+Inf"} 0',
        'y_seconds_sum{kind="a"} 0',
        'y_seconds_count{kind="a"} 0',
        "# HELP z Computed",
        "# TYPE z gauge",
        "z 2.5",
        "# HELP w_total By revision",
        "# TYPE w_total counter",
    ]
    counter.inc("a", by=2)
    histogram.observe(1, "a")
    histogram.observe(7, "a")
    dynamic.inc("r1")
    text = registry.render()
    assert 'x_total{kind="a"} 2\n' in text
    assert 'le="0.5"} 0\ny_seconds_bucket{kind="a",le="1"} 1\ny_seconds_bucket{kind="a",le="+Inf"} 2\n' in text
    assert 'y_seconds_sum{kind="a"} 8\n' in text
    assert 'w_total{revision="r1"} 1\n' in text
    dynamic.forget("r1")
    assert "r1" not in registry.render()
    with pytest.raises(ValueError, match="twice"):
        registry.gauge("z", "Again")


class OpenTransport(asyncio.Transport):
    """A transport that is open until aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted = True


def test_idle_connections_are_taken_youngest_first_and_never_beyond_their_age() -> None:
    loop = asyncio.new_event_loop()
    pool = UpstreamPool(loop, 1.0)
    state = EndpointState(Endpoint("p", "10.0.0.1", 1, "aa"), BreakerLimits())
    connections = []
    for now_s in (0.0, 1.0, 2.0):
        connection = UpstreamConnection(state, lambda _: None)
        connection.connection_made(OpenTransport())
        pool.give_back(connection, now_s)
        connections.append(connection)
    assert pool.take(state, 2.5) is connections[2]
    pool.sweep(IDLE_LIMIT_S + 0.5)
    assert not connections[0].clean
    assert connections[1].clean
    assert pool.take(state, 1.0 + IDLE_LIMIT_S) is None
    assert not connections[1].clean
    loop.close()
