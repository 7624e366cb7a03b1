"""Drains a running engine over its own port and waits until it is idle: the preStop hook of an engine pod.

Readiness drops at once; the command returns when no request is open, or when its time is up. An engine that is gone
already counts as drained. Called by `__main__`.
"""

import http.client
import json
import time
from collections.abc import Callable
from typing import Any

from forebay.contract.names import PATH_DRAIN

_POLL_S = 0.1
_CALL_TIMEOUT_S = 5.0


def drain(host: str, port: int, timeout_s: float, say: Callable[[str], None]) -> int:
    """0 when the engine is idle or gone, 1 when requests were still open after `timeout_s`."""
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            open_requests = int(_post(host, port)["open_requests"])
        except ConnectionError:
            say("the engine is gone")
            return 0
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            say(f"the engine did not answer: {error}")
            open_requests = -1
        if open_requests == 0:
            say("drained")
            return 0
        if time.monotonic() >= end_s:
            say(f"not idle after {timeout_s:g} s: {open_requests} open requests")
            return 1
        time.sleep(_POLL_S)


def _post(host: str, port: int) -> dict[str, Any]:
    connection = http.client.HTTPConnection(host, port, timeout=_CALL_TIMEOUT_S)
    try:
        connection.request("POST", PATH_DRAIN, body=b"")
        response = connection.getresponse()
        document = json.loads(response.read())
    finally:
        connection.close()
    return dict(document)
