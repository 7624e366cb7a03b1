"""Where each value of the engine's configuration comes from.

Precedence: flags over the `--config` file over the release file over built-in defaults. Every value keeps its
source, so that an operator can see why a number is what it is. Unknown keys are errors with a suggestion, and a
wrong type or range names the key. `keys.py` lists the keys; `resolve.py` turns the values into the numbers that run.
The only module of the engine that reads the process environment. Called by `__main__` and `describe`.
"""

import difflib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.contract.errors import InvalidSpec
from forebay.contract.names import RELEASE_FILE
from forebay.engine.keys import KEYS, KEYS_BY_NAME, EngineConfig, Key

MAX_CONFIG_FILE_BYTES = 1 << 20
_LARGEST_NUMBER = 1 << 62


@dataclass(frozen=True, slots=True)
class Setting:
    """A value with its source (flag, config file, release, built-in or resolved) and the reason for it."""

    value: Any
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Layer:
    """Values from one source; earlier layers win."""

    source: str
    reason: str
    values: Mapping[str, Any]


def merge(layers: Sequence[Layer]) -> tuple[EngineConfig, dict[str, Setting]]:
    """The winning value of every key. `layers` come strongest first; raises `InvalidSpec` naming the key."""
    checked = [Layer(layer.source, layer.reason, _checked(layer)) for layer in layers]
    settings: dict[str, Setting] = {}
    for key in KEYS:
        settings[key.name] = next(
            (
                Setting(layer.values[key.name], layer.source, layer.reason)
                for layer in checked
                if key.name in layer.values
            ),
            Setting(key.default, "built-in", "built-in default"),
        )
    return EngineConfig(**{name: setting.value for name, setting in settings.items()}), settings


def _checked(layer: Layer) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in layer.values.items():
        key = KEYS_BY_NAME.get(name)
        if key is None:
            raise InvalidSpec(f"{layer.source}: unknown key {name!r}{suggestion(name)}", field=name)
        values[name] = check_value(key, value, layer.source)
    return values


def suggestion(name: str) -> str:
    """A did-you-mean clause for an unknown key, empty when nothing is near."""
    near = difflib.get_close_matches(name, KEYS_BY_NAME, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_value(key: Key, value: Any, source: str) -> Any:
    """The value in the key's own type; raises `InvalidSpec` that names the key, what was wrong and what is allowed."""
    typed = _typed(key, value)
    if typed is None:
        raise InvalidSpec(f"{source}: {key.name} must be {_allowed(key)}, not {value!r}", field=key.name)
    if key.kind in ("integer", "number"):
        too_small = key.minimum is not None and typed < key.minimum
        too_large = key.maximum is not None and typed > key.maximum
        if too_small or too_large:
            raise InvalidSpec(f"{source}: {key.name} must be {_allowed(key)}, not {value!r}", field=key.name)
    if key.values and typed not in key.values:
        near = difflib.get_close_matches(str(typed), key.values, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InvalidSpec(f"{source}: {key.name} must be {_allowed(key)}, not {value!r}{hint}", field=key.name)
    return typed


def _typed(key: Key, value: Any) -> Any:
    """The value as the key's type, or None when it has another type."""
    match key.kind:
        case "integer" | "number":
            return _number(value, is_integer=key.kind == "integer")
        case "boolean":
            return value if isinstance(value, bool) else None
        case "string":
            return value if isinstance(value, str) and "\0" not in value else None
        case _:
            is_list = isinstance(value, list | tuple) and all(isinstance(item, str) and item for item in value)
            return tuple(value) if is_list else None


def _number(value: Any, *, is_integer: bool) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST_NUMBER:
        return None
    if not is_integer:
        return float(value)
    return int(value) if float(value).is_integer() else None


def _allowed(key: Key) -> str:
    if key.values:
        return "one of " + ", ".join(key.values)
    names = {"integer": "an integer", "number": "a number", "boolean": "true or false", "string": "a string"}
    text = names.get(key.kind, "a list of strings")
    if key.minimum is not None and key.maximum is not None:
        text += (
            f" from {key.minimum:g} to {key.maximum:g}"
            if key.kind == "number"
            else f" from {key.minimum} to {key.maximum}"
        )
    return text


def flag_layer(given: Mapping[str, str]) -> Layer:
    """A layer from flag texts by key name; raises `InvalidSpec` for a text that is not of the key's type."""
    return Layer(
        "flag",
        "given on the command line",
        {name: _from_text(KEYS_BY_NAME[name], text) for name, text in given.items()},
    )


def _from_text(key: Key, text: str) -> Any:
    if key.kind == "string":
        return text
    if key.kind == "list":
        return [item for item in text.split(",") if item]
    try:
        value = json.loads(text, parse_constant=lambda _: text)
    except (ValueError, RecursionError):
        return text
    return value


def file_layer(path: Path) -> Layer:
    """A layer from a JSON configuration file; raises `InvalidSpec` when it cannot be read."""
    return Layer("config file", f"set in {path.name}", _read_object(path, "config"))


def release_layer(path: Path, architecture: str) -> Layer:
    """The release's defaults for one architecture; empty when the file does not exist."""
    if not path.exists():
        return Layer("release", "", {})
    document = _read_object(path, "release")
    defaults = document.get("defaults", {})
    values = defaults.get(architecture, {}) if isinstance(defaults, dict) else None
    if not isinstance(values, dict):
        raise InvalidSpec(f"{path}: defaults.{architecture} must be an object", field="release")
    return Layer("release", f"default of release {document.get('version', 'unknown')} on {architecture}", values)


def _read_object(path: Path, field: str) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
        if len(raw) > MAX_CONFIG_FILE_BYTES:
            raise InvalidSpec(f"{path} is larger than {MAX_CONFIG_FILE_BYTES} bytes", field=field)
        document = json.loads(raw)
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidSpec(f"cannot read {path}: {error}", field=field) from error
    if not isinstance(document, dict):
        raise InvalidSpec(f"{path} must hold one JSON object", field=field)
    return document


@dataclass(frozen=True, slots=True)
class Environment:
    """What the engine takes from the process environment."""

    release_file: Path
    engine_id: str


def read_environment() -> Environment:
    """FOREBAY_RELEASE_FILE moves the release file; FOREBAY_ENGINE_ID (the pod name) names this engine."""
    return Environment(
        release_file=Path(os.environ.get("FOREBAY_RELEASE_FILE", RELEASE_FILE)),
        engine_id=os.environ.get("FOREBAY_ENGINE_ID") or socket.gethostname(),
    )
