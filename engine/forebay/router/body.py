"""The two facts a router needs from a request body: the model it names and whether it asks for a stream.

The body itself is forwarded byte for byte. JSON that cannot be read, nests too deeply (the parser stops at 1024 levels)
or is not an object is refused here, so that an engine never sees it; every other field is the engine's to judge.
"""

from typing import NamedTuple

import orjson

from forebay.contract.errors import InvalidRequest


class BodyFacts(NamedTuple):
    """`model` is None when the body names none."""

    model: str | None
    stream: bool


NO_FACTS = BodyFacts(None, stream=False)


def read_body(body: bytes) -> BodyFacts:
    """Read the facts of a JSON body; raises `InvalidRequest` with the field at fault."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidRequest("the request body must be a JSON object")
    model = document.get("model")
    if model is not None and not isinstance(model, str):
        raise InvalidRequest("model must be a string", param="model")
    return BodyFacts(model, stream=document.get("stream") is True)
