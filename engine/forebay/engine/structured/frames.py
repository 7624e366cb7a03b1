"""What the API process and the compile process say to each other: JSON documents with their length in front. Pure."""

import struct
from dataclasses import dataclass
from typing import Any, Final

import orjson

HEADER: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled grammar: the library it is for, and what the core builds matchers from."""

    backend: str
    payload: str


def frame(document: Any) -> bytes:
    """A document as length and body."""
    body = orjson.dumps(document)
    return HEADER.pack(len(body)) + body


def body_length(head: bytes) -> int:
    """Bytes that follow a header."""
    (length,) = HEADER.unpack(head)
    return int(length)
