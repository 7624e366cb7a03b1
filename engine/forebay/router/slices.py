"""EndpointSlices and the routes ConfigMap, from API objects to values.

Objects are plain JSON mappings. A slice without a revision label or port is skipped: it is not one of ours. A pod that
appears in two slices (Kubernetes moves endpoints between slices) counts once, and the more willing record wins.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from forebay.contract.errors import InvalidSpec
from forebay.contract.names import LABEL_REVISION, ROUTES_KEY
from forebay.contract.wire import Routes, parse_routes
from forebay.router.view import Discovered, Endpoint

Json = Mapping[str, Any]


def read_slices(slices: Iterable[Json]) -> tuple[Discovered, ...]:
    """All endpoints of the given EndpointSlice objects, sorted and without duplicates."""
    found: dict[Endpoint, Discovered] = {}
    for item in slices:
        for record in _slice(item):
            known = found.get(record.endpoint)
            if known is None or (record.ready and not known.ready):
                found[record.endpoint] = record
    return tuple(found[key] for key in sorted(found))


def _slice(item: Json) -> Iterable[Discovered]:
    revision = (item.get("metadata", {}).get("labels") or {}).get(LABEL_REVISION)
    ports = [port["port"] for port in item.get("ports") or () if port.get("port")]
    if not revision or not ports:
        return
    for record in item.get("endpoints") or ():
        conditions = record.get("conditions") or {}
        pod = (record.get("targetRef") or {}).get("name")
        for host in (record.get("addresses") or ())[:1]:
            yield Discovered(
                Endpoint(pod=pod or host, host=host, port=ports[0], revision=revision),
                # The API defines an absent `ready` as true.
                ready=conditions.get("ready") is not False,
                terminating=conditions.get("terminating") is True,
            )


def read_routes(config_map: Json) -> Routes:
    """The routes document of the ConfigMap; raises `InvalidSpec` or `Incompatible`."""
    text = (config_map.get("data") or {}).get(ROUTES_KEY)
    if text is None:
        raise InvalidSpec(f"the routes ConfigMap has no key {ROUTES_KEY}", field=ROUTES_KEY)
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidSpec(f"the routes document is not valid JSON: {error}", field=ROUTES_KEY) from error
    if not isinstance(document, dict):
        raise InvalidSpec("the routes document must be an object", field=ROUTES_KEY)
    return parse_routes(document)


def read_static(document: Json) -> tuple[Routes, tuple[Discovered, ...]]:
    """A static file `{"routes": {...}, "endpoints": [{"address", "revision", "pod"?, "ready"?, "terminating"?}]}`."""
    try:
        routes = parse_routes(document["routes"])
        endpoints = tuple(sorted((_static(item) for item in document["endpoints"]), key=lambda found: found.endpoint))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidSpec(f"the static routes file has a bad or missing field: {error}", field="endpoints") from error
    return routes, endpoints


def _static(item: Json) -> Discovered:
    host, _, port = str(item["address"]).rpartition(":")
    return Discovered(
        Endpoint(
            pod=str(item.get("pod", item["address"])),
            host=host.strip("[]"),
            port=int(port),
            revision=str(item["revision"]),
        ),
        ready=item.get("ready", True) is True,
        terminating=item.get("terminating", False) is True,
    )
