"""The engine's configuration keys and where each value comes from.

Precedence: flags over the `--config` file over the release file over built-in defaults. Every value keeps its
source, so that an operator can see why a number is what it is. Unknown keys are errors with a suggestion, and a
wrong type or range names the key. `EngineConfig` is frozen; `resolve.py` turns it into the numbers that run.
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

MAX_CONFIG_FILE_BYTES = 1 << 20
_LARGEST_NUMBER = 1 << 62


@dataclass(frozen=True, slots=True)
class Key:
    """One configuration key. `kind` is integer, number, string, boolean or list (of strings)."""

    name: str
    kind: str
    default: Any
    description: str
    minimum: float | None = None
    maximum: float | None = None
    values: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """The command line flag of this key."""
        return "--" + self.name.replace("_", "-")


_MIB = 1 << 20

KEYS: tuple[Key, ...] = (
    Key("model", "string", "", "Path of the model: a .gguf file, a folder with one, or a Hugging Face folder."),
    Key("served_names", "list", (), "Model names that requests may use; empty means the model's file name."),
    Key("dtype", "string", "bf16", "Precision of weights and KV cache.", values=("bf16", "fp32")),
    Key("host", "string", "127.0.0.1", "Address to listen on."),
    Key("port", "integer", 8000, "TCP port to listen on.", 1, 65535),
    Key("threads", "integer", 0, "Compute threads; 0 takes the CPUs of the cgroup.", 0, 1024),
    Key("kv_cache_bytes", "integer", 0, "Bytes of the KV cache; 0 sizes it from the memory limit.", 0, 1 << 46),
    Key("page_tokens", "integer", 16, "Tokens in one KV page.", 8, 256),
    Key("prefix_reuse", "boolean", True, "Share KV pages between requests that begin with the same tokens."),
    Key("max_running", "integer", 32, "Requests that run at the same time.", 1, 1024),
    Key("max_waiting", "integer", 256, "Requests that may wait; more are answered 429.", 1, 100_000),
    Key("max_batch_tokens", "integer", 512, "Tokens computed in one step; longer prompts run in chunks.", 16, 65_536),
    Key(
        "max_prompt_tokens", "integer", 0, "Longest prompt; 0 means what the model and the KV cache allow.", 0, 1 << 24
    ),
    Key("max_tokens", "integer", 0, "Most tokens one answer may have; 0 means what fits.", 0, 1 << 24),
    Key("default_max_tokens", "integer", 512, "Answer length when the request names none.", 1, 1 << 24),
    Key("max_seconds", "number", 600.0, "Longest life of a request; it then ends with what it has.", 0.1, 86_400.0),
    Key("max_body_bytes", "integer", 2 * _MIB, "Largest request body; larger is answered 413.", 1024, 256 * _MIB),
    Key("max_n", "integer", 8, "Most answers of one request, prompts times n.", 1, 128),
    Key("max_stop", "integer", 4, "Most stop strings of one request.", 1, 64),
    Key("head_seconds", "number", 20.0, "Time a client has to send a request head.", 0.1, 600.0),
    Key("body_seconds", "number", 60.0, "Time a client has to send a request body.", 0.1, 3600.0),
    Key("write_seconds", "number", 60.0, "Time a client may leave a stream unread before it is cut.", 0.1, 3600.0),
    Key("keepalive_seconds", "number", 75.0, "Time an idle connection stays open.", 1.0, 3600.0),
    Key("stall_seconds", "number", 60.0, "Not ready when work waits this long without a step.", 1.0, 3600.0),
    Key("drain_seconds", "number", 30.0, "Grace of running requests after SIGTERM.", 0.0, 3600.0),
    Key("api_keys_file", "string", "", "JSON file of client name to API key; empty asks for no key."),
    Key("log_level", "string", "info", "Least severe log line.", values=("debug", "info", "warning", "error")),
)
KEYS_BY_NAME: Mapping[str, Key] = {key.name: key for key in KEYS}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One value for each key of `KEYS`, before sizes are fitted to the machine and the model."""

    model: str
    served_names: tuple[str, ...]
    dtype: str
    host: str
    port: int
    threads: int
    kv_cache_bytes: int
    page_tokens: int
    prefix_reuse: bool
    max_running: int
    max_waiting: int
    max_batch_tokens: int
    max_prompt_tokens: int
    max_tokens: int
    default_max_tokens: int
    max_seconds: float
    max_body_bytes: int
    max_n: int
    max_stop: int
    head_seconds: float
    body_seconds: float
    write_seconds: float
    keepalive_seconds: float
    stall_seconds: float
    drain_seconds: float
    api_keys_file: str
    log_level: str


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
