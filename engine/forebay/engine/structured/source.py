"""What to compile: the source of one grammar, as it goes from a request to the compile process. Pure.

A source is small text with everything that decides the result, so its digest is the key of caches and of the core's
store. Made by `request.py`, compiled by `compile.py`.
"""

import enum
import hashlib
from dataclasses import dataclass
from typing import Any

import orjson

from forebay.engine.structured.bounds import Bounds


class SourceKind(enum.Enum):
    """The language of a source's text."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"
    LARK = "lark"
    STRUCTURAL_TAG = "structural_tag"
    TOOLS = "tools"


JSON_KINDS = frozenset({SourceKind.JSON_OBJECT, SourceKind.JSON_SCHEMA})
"""Sources whose complete answers are one JSON document."""


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """One grammar to compile.

    `text` is the grammar, or canonical JSON for the kinds that are JSON. `param` is the request field that errors name.
    `backend` is auto, xgrammar or llguidance.
    """

    kind: SourceKind
    text: str
    param: str
    backend: str
    bounds: Bounds

    @property
    def size_bytes(self) -> int:
        """Size of the text in UTF-8."""
        return len(self.text.encode("utf-8", "surrogatepass"))

    @property
    def digest(self) -> str:
        """SHA-256 in hex of everything that decides the compiled grammar."""
        return hashlib.sha256(orjson.dumps(self.document())).hexdigest()

    def document(self) -> dict[str, Any]:
        """The source as a JSON object, for the compile process."""
        return {
            "kind": self.kind.value,
            "text": self.text,
            "param": self.param,
            "backend": self.backend,
            "bounds": self.bounds.document(),
        }

    @classmethod
    def of(cls, document: dict[str, Any]) -> "GrammarSource":
        """The source of a `document()`."""
        return cls(
            SourceKind(document["kind"]),
            document["text"],
            document["param"],
            document["backend"],
            Bounds(**document["bounds"]),
        )
