"""Typed reading of JSON request bodies, with errors that name the field.

Pure. `parse_object` turns bytes into one JSON object or an `InvalidRequest`; `Fields` reads each value with a type and
a range, treats null as absent as OpenAI does, and `finish` refuses whatever was not read. Used by `openai.py`.
"""

import difflib
import math
from collections.abc import Mapping
from typing import Any

import orjson

from forebay.contract.errors import InvalidRequest

MAX_SHOWN_CHARS = 60


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`; raises `InvalidRequest` for bad UTF-8, NaN, deep nesting or another type."""
    if not body:
        raise InvalidRequest("the body is empty; a JSON object is needed")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"the body must be a JSON object, not {kind_of(document)}")
    return document


def kind_of(value: Any) -> str:
    """The JSON name of a value's type."""
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), "null")


def shown(value: Any) -> str:
    """A short form of a value for an error message."""
    text = repr(value) if isinstance(value, int | float | str | bool) else kind_of(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."


class Fields:
    """One JSON object being read; `path` is its place in the body, empty for the body itself."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = values
        self._path = path
        self._read: set[str] = set()

    def name(self, field: str) -> str:
        """The full name of a field, as errors give it."""
        return f"{self._path}.{field}" if self._path else field

    def get(self, field: str) -> Any:
        """The raw value, None when absent or null; marks the field as read."""
        self._read.add(field)
        return self._values.get(field)

    def refuse(self, field: str, problem: str) -> InvalidRequest:
        """An error about one field, to be raised by the caller."""
        name = self.name(field)
        return InvalidRequest(f"{name}: {problem}", param=name)

    def integer(self, field: str, minimum: int, maximum: int) -> int | None:
        """An integer in a range, or None when absent."""
        value = self.get(field)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(field, f"must be an integer, not {kind_of(value)}")
        if not minimum <= value <= maximum:
            raise self.refuse(field, f"must be from {minimum} to {maximum}, not {shown(value)}")
        return value

    def number(self, field: str, minimum: float, maximum: float) -> float | None:
        """A finite number in a range, or None when absent."""
        value = self.get(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(field, f"must be a number, not {kind_of(value)}")
        if not math.isfinite(value) or not minimum <= value <= maximum:
            raise self.refuse(field, f"must be from {minimum:g} to {maximum:g}, not {shown(value)}")
        return float(value)

    def boolean(self, field: str) -> bool | None:
        """A boolean, or None when absent."""
        value = self.get(field)
        if value is not None and not isinstance(value, bool):
            raise self.refuse(field, f"must be true or false, not {kind_of(value)}")
        return value

    def string(self, field: str) -> str | None:
        """A string, or None when absent."""
        value = self.get(field)
        if value is not None and not isinstance(value, str):
            raise self.refuse(field, f"must be a string, not {kind_of(value)}")
        return value

    def array(self, field: str, maximum: int) -> list[Any] | None:
        """An array of bounded length, or None when absent."""
        value = self.get(field)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.refuse(field, f"must be an array, not {kind_of(value)}")
        if len(value) > maximum:
            raise self.refuse(field, f"has {len(value)} items; at most {maximum} are allowed")
        return value

    def object(self, field: str) -> "Fields | None":
        """A nested object, or None when absent."""
        value = self.get(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(field, f"must be an object, not {kind_of(value)}")
        return Fields(value, self.name(field))

    def finish(self, ignored: frozenset[str], neutral: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse fields that were not read.

        `ignored` fields change no answer and pass. `neutral` fields are not supported, and pass only when null or
        one of the values that ask for nothing.
        """
        for field, value in self._values.items():
            if field in self._read or field in ignored:
                continue
            if field in neutral:
                if value is not None and not any(
                    type(value) is type(item) and value == item for item in neutral[field]
                ):
                    raise self.refuse(field, f"not supported yet (value {shown(value)}); leave it out")
                continue
            known = [*self._read, *neutral]
            near = difflib.get_close_matches(field[:MAX_SHOWN_CHARS], known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise self.refuse(field[:MAX_SHOWN_CHARS], f"unknown field{hint}")
