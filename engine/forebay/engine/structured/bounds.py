"""The bounds that every generated JSON document has. Pure values, set once from the engine's configuration.

A schema that leaves a length open gets the bound here instead, so that every walk through a grammar ends. They narrow
what a schema allows and never widen it. Sent with each compilation and part of its digest.
"""

from dataclasses import asdict, dataclass
from typing import Any

MAX_DIGITS = 15
"""Digits of an integer's magnitude: all of them are exact in a double."""
MAX_FRACTION_DIGITS = 9
MAX_EXPONENT = 99


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lengths in characters or items. `recursion` is how often one `$ref` may be entered inside itself."""

    string: int = 1024
    items: int = 64
    whitespace: int = 20
    key: int = 64
    recursion: int = 5
    any_depth: int = 4
    object_depth: int = 6

    def document(self) -> dict[str, Any]:
        """The bounds as a JSON object."""
        return asdict(self)
