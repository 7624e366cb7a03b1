"""Prints the EngineRelease resource of this build: version, precisions, configuration keys and defaults.

The operator validates and resolves user configuration against it, so it is made from the same `KEYS` that the engine
itself checks. The YAML writer covers what the document needs: maps, lists and JSON scalars. Called by `__main__`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from forebay.contract.names import API_VERSION, GROUP
from forebay.contract.versions import VERSION
from forebay.engine.config import Layer, merge
from forebay.engine.keys import KEYS, KEYS_BY_NAME, Key

ARCHITECTURES = ("cpu",)
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9 _./-]*[A-Za-z0-9]")
_NOT_PRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null"})
_LEFT_TO_START = frozenset({"model", "served_names", "host", "port", "api_keys_file", "draft_model"})
"""Keys without a default that a release could state: they belong to one start of one engine."""


def engine_release(name: str, image: str, layers: Mapping[str, Layer]) -> dict[str, Any]:
    """The EngineRelease object; `layers` holds the release file's defaults for each architecture."""
    return {
        "apiVersion": f"{GROUP}/{API_VERSION}",
        "kind": "EngineRelease",
        "metadata": {"name": name},
        "spec": {
            "version": VERSION,
            "image": image,
            "architectures": list(ARCHITECTURES),
            "precisions": [
                {"architecture": architecture, "precisions": list(KEYS_BY_NAME["dtype"].values)}
                for architecture in ARCHITECTURES
            ],
            "configSchema": [_schema(key) for key in KEYS],
            "defaults": [
                {"architecture": architecture, "values": _defaults(layers[architecture])}
                for architecture in ARCHITECTURES
            ],
        },
    }


def _schema(key: Key) -> dict[str, Any]:
    entry: dict[str, Any] = {"key": key.name, "type": key.kind}
    if key.minimum is not None:
        entry["minimum"] = key.minimum
    if key.maximum is not None:
        entry["maximum"] = key.maximum
    if key.values:
        entry["values"] = list(key.values)
    entry["description"] = key.description
    return entry


def _defaults(layer: Layer) -> dict[str, Any]:
    _, settings = merge([layer])
    return {name: setting.value for name, setting in sorted(settings.items()) if name not in _LEFT_TO_START}


def to_yaml(document: Mapping[str, Any]) -> str:
    """A document of maps, lists and scalars as block-style YAML."""
    return "\n".join(_lines(document)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _entry(f"{name}:", item)
    else:
        for item in value:
            first, *rest = list(_lines(item)) if isinstance(item, Mapping | list) and item else [_scalar(item)]
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)


def _entry(head: str, item: Any) -> Iterator[str]:
    if isinstance(item, Mapping | list) and item:
        yield head
        yield from (f"  {line}" for line in _lines(item))
    else:
        yield f"{head} {_scalar(item)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    text = _NOT_PRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))
    if isinstance(value, float) and "e" in text and "." not in text:
        # A YAML reader takes a number with an exponent for one only when it has a point.
        return text.replace("e", ".0e")
    return text
