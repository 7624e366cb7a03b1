"""The routes ConfigMap: which revisions get traffic, at which epoch and since when.

The document is also the operator's memory of where traffic goes, so its digest is kept beside it: a hand-edited or
unreadable document is not believed and is written anew with a higher epoch.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from forebay.contract.errors import ForebayError
from forebay.contract.names import GROUP, ROLE_ROUTER, ROUTES_KEY, routes_name
from forebay.contract.wire import Routes, parse_routes
from forebay.operator.desired.kinds import CONFIG_MAP
from forebay.operator.desired.metadata import Owner, child
from forebay.operator.snapshot import Json

ANNOTATION_DIGEST: Final = f"{GROUP}/routes-digest"
ANNOTATION_SINCE: Final = f"{GROUP}/routes-since"


@dataclass(frozen=True, slots=True)
class RecordedRoutes:
    """Routes as the operator wrote them; `since` is when this epoch began."""

    routes: Routes
    since: datetime


def routes_object(owner: Owner, recorded: RecordedRoutes) -> dict[str, Any]:
    """The ConfigMap that routers watch."""
    text = json.dumps(recorded.routes.to_json(), sort_keys=True)
    annotations = {ANNOTATION_DIGEST: _digest(text), ANNOTATION_SINCE: recorded.since.isoformat(timespec="seconds")}
    return child(
        CONFIG_MAP,
        owner,
        routes_name(owner.name),
        {"data": {ROUTES_KEY: text}},
        role=ROLE_ROUTER,
        annotations=annotations,
    )


def read_routes(children: Iterable[Json], owner: Owner) -> RecordedRoutes | None:
    """The routes that the operator last wrote, or None where there are none or they are not the operator's."""
    name = routes_name(owner.name)
    for document in children:
        if document["kind"] == CONFIG_MAP.kind and document["metadata"]["name"] == name:
            return _read(document)
    return None


def _read(document: Json) -> RecordedRoutes | None:
    annotations = document["metadata"].get("annotations") or {}
    text = (document.get("data") or {}).get(ROUTES_KEY)
    if text is None or annotations.get(ANNOTATION_DIGEST) != _digest(text):
        return None
    try:
        since = datetime.fromisoformat(annotations[ANNOTATION_SINCE])
        return RecordedRoutes(parse_routes(json.loads(text)), since)
    except (KeyError, ValueError, ForebayError):
        return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
