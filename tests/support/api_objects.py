"""Hypothesis strategies that draw JSON objects from a structural schema: valid leaves, and single mutations of them."""

import copy
import re
from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]

_MATCHES = re.compile(r"self\.matches\('\^\(\?:(.*)\)\$'\)")
_SCALARS = st.one_of(st.booleans(), st.integers(-10, 10), st.text("ab", max_size=3))
_STRINGS = (
    "a",
    "max-running",
    "max_running",
    "a.b",
    "0.1.0",
    "0.2.0-rc.1",
    "Apache-2.0",
    "MIT OR (Apache-2.0 WITH x)",
    "owner/name",
    "main",
    "models/a.gguf",
    "/models/a.gguf",
    "https://example.com/a.gguf?b=c",
    "0123456789abcdef" * 4,
    "nvidia.com/gpu",
    "NVIDIA-H100-80GB-HBM3",
    "localhost:5000/engine:0.1.0",
    "engine:0.1.0",
    "registry.example.com/a/b@sha256:" + "ab" * 32,
    "2027-01-31",
    "2",
    "100%",
)
_JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**60,
    1.5,
    "",
    "x" * 3000,
    "A b",
    "fp9",
    "1GB",
    "-1Gi",
    "../x",
    "/a/../b",
    "cpu",
    "safetensors",
    "Exists",
    [],
    {},
    [1],
    {"a": 1},
)


def objects(schema: Schema) -> st.SearchStrategy[Any]:
    """Values whose leaves are valid; rules over several fields may or may not hold."""
    if schema.get("x-kubernetes-int-or-string"):
        return st.sampled_from([0, 1, 4, "500m", "2", "4Gi", "1.5G", "1e3"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "integer":
            low, high = schema.get("minimum", -100), schema.get("maximum", 100)
            return st.one_of(st.integers(low, min(high, low + 5)), st.just(high))
        case "number":
            return st.one_of(st.integers(-3, 3), st.floats(-3, 3))
        case "boolean":
            return st.booleans()
        case "string":
            return _strings(schema)
        case "array":
            return _lists(schema)
        case "object":
            return _dicts(schema)
        case _:
            return _SCALARS


def pattern_of(schema: Schema) -> str | None:
    """The pattern that a rule of a string demands, or None."""
    for rule in schema.get("x-kubernetes-validations", []):
        found = _MATCHES.fullmatch(rule["rule"])
        if found is not None:
            return found[1]
    return None


@st.composite
def mutated(draw: st.DrawFn, schema: Schema) -> Any:
    """A value of `objects` with at most one place changed into something that is often wrong."""
    value = draw(objects(schema))
    if not isinstance(value, dict | list) or not value:
        return draw(st.sampled_from(_JUNK))
    value = copy.deepcopy(value)
    places = list(_places(value))
    container, key = draw(st.sampled_from(places))
    match draw(st.sampled_from(["junk", "delete", "extra", "repeat"])):
        case "junk":
            container[key] = draw(st.sampled_from(_JUNK))
        case "delete":
            del container[key]
        case "extra" if isinstance(container, dict):
            container["unknownField"] = 1
        case _ if isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
    return value


def _strings(schema: Schema) -> st.SearchStrategy[str]:
    low, high = schema.get("minLength", 0), schema["maxLength"]
    pattern = pattern_of(schema)
    if pattern is not None:
        fitting = [text for text in _STRINGS if low <= len(text) <= high and re.fullmatch(pattern, text)]
        return st.sampled_from(fitting)
    return st.text("abc-._/ ", min_size=low, max_size=min(high, low + 8))


def _lists(schema: Schema) -> st.SearchStrategy[list[Any]]:
    low = schema.get("minItems", 0)
    items = objects(schema["items"])
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys is not None:
        return st.lists(items, min_size=low, max_size=low + 2, unique_by=lambda item: tuple(item[key] for key in keys))
    if schema.get("x-kubernetes-list-type") == "set":
        return st.lists(items, min_size=low, max_size=low + 2, unique=True)
    return st.lists(items, min_size=low, max_size=low + 2)


def _dicts(schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
    if "properties" not in schema:
        values = schema.get("additionalProperties")
        names = st.sampled_from(["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "a"])
        return st.dictionaries(names, _SCALARS if values is None else objects(values), max_size=3)
    required = set(schema.get("required", []))
    fields = {name: objects(field) for name, field in schema["properties"].items()}
    return st.fixed_dictionaries(
        {name: field for name, field in fields.items() if name in required},
        optional={name: field for name, field in fields.items() if name not in required},
    )


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in entries:
        found.append((value, key))
        if isinstance(item, dict | list):
            found.extend(_places(item))
    return found
