"""Rules that a structural schema cannot say, each as one object with two readings.

`Rule.expr` is CEL and goes into the CRD as `x-kubernetes-validations`; `Rule.holds` is the same statement in Python
and runs in the pydantic validators. A property test holds the two equal. The message names the field and the fix.
A rule sits on a field (in `Annotated`) or on a model (in its class attribute `rules`).

Regular expressions are written in the part of the syntax that RE2 and Python share, without backslashes, because
they are quoted once more inside CEL.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

VALIDATIONS = "x-kubernetes-validations"


@dataclass(frozen=True, slots=True)
class Rule:
    """One statement about a value: `expr` in CEL over `self`, `holds` in Python, `message` when it does not hold.

    `field_path` (".name" relative to the value) moves the error to a field of the value.
    """

    expr: str
    message: str
    holds: Callable[[Any], bool]
    field_path: str | None = None

    def check(self, value: Any) -> Any:
        """Return `value`, or raise pydantic's error with this rule's message."""
        if not self.holds(value):
            raise PydanticCustomError("forebay_rule", "{text}", {"text": self.message})
        return value

    def to_json(self) -> dict[str, str]:
        """The entry of `x-kubernetes-validations`."""
        entry = {"rule": self.expr, "message": self.message}
        if self.field_path is not None:
            entry["fieldPath"] = self.field_path
        return entry

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        document = handler(schema)
        document.setdefault(VALIDATIONS, []).append(self.to_json())
        return document


def matches(pattern: str, message: str) -> Rule:
    """The whole string matches `pattern` (no anchors, no quotes, no backslashes)."""
    if "'" in pattern or "\\" in pattern:
        raise ValueError(f"pattern {pattern!r} needs quoting inside CEL")
    compiled = re.compile(pattern)
    return Rule(
        expr=f"self.matches('^(?:{pattern})$')",
        message=message,
        holds=lambda value: compiled.fullmatch(value) is not None,
    )


def exactly_one(what: str, fields: dict[str, str]) -> Rule:
    """Exactly one of `fields` (JSON name -> attribute) is set on the object called `what`."""
    present = ", ".join(f"has(self.{name})" for name in fields)
    return Rule(
        expr=f"[{present}].exists_one(set, set)",
        message=f"{what} must set exactly one of {', '.join(fields)}",
        holds=lambda value: sum(getattr(value, attribute) is not None for attribute in fields.values()) == 1,
    )


def not_above(smaller: tuple[str, str], larger: tuple[str, str]) -> Rule:
    """Where both numbers are set, the first is not above the second; each is (JSON name, attribute)."""

    def holds(value: Any) -> bool:
        low, high = getattr(value, smaller[1]), getattr(value, larger[1])
        return low is None or high is None or low <= high

    return Rule(
        expr=f"!has(self.{smaller[0]}) || !has(self.{larger[0]}) || self.{smaller[0]} <= self.{larger[0]}",
        message=f"{smaller[0]} must not be above {larger[0]}; lower {smaller[0]} or raise {larger[0]}",
        holds=holds,
        field_path=f".{smaller[0]}",
    )
