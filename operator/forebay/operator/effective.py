"""The engine's effective configuration: every value with who chose it, checked against the release's schema.

Precedence: the operator's own keys, then the user's typed fields and `spec.engine.config`, then the release's defaults
for the architecture. A value goes into the engine's configuration file exactly as it stands in `status.effective`.
Called by `reconcile` after the references are found.
"""

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from forebay.api.enginerelease import ConfigKey, EngineRelease
from forebay.api.modeldeployment import ModelDeploymentSpec
from forebay.operator.conditions import Reason
from forebay.operator.references import Problem, References

Source = Literal["user", "release", "operator"]

OPERATOR_KEYS = frozenset({"model", "served_names", "dtype", "host", "port", "api_keys_file", "drain_seconds"})
"""Configuration keys that follow from the deployment itself; a user cannot set them."""

ENGINE_DTYPES = frozenset({"bf16", "fp16", "fp32", "int8", "int4"})
"""Precisions that the engine makes of the checkpoint it is given; the others are those of the checkpoint itself."""

_ENGINE_WORDS: Final[Mapping[str, str]] = {
    "Fast": "default",
    "BatchInvariant": "batch_invariant",
    "MaxUtilization": "max_utilization",
    "GuaranteedNoEvict": "guaranteed_no_evict",
    "None": "off",
    "NGram": "ngram",
}
"""The engine's word for each choice of a typed field."""

DEFAULT_MAX_SECONDS = 600
"""Longest request when neither the user nor the release says otherwise; the engine's built-in value."""


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One configuration value and who chose it."""

    key: str
    value: Any
    source: Source


@dataclass(frozen=True, slots=True)
class Effective:
    """All values, sorted by key, and a digest over keys and values."""

    release: str
    values: tuple[EffectiveValue, ...]
    digest: str

    def get(self, key: str, default: Any) -> Any:
        """The value of `key`, or `default` where nobody chose one."""
        return next((item.value for item in self.values if item.key == key), default)

    def to_config(self) -> dict[str, Any]:
        """The engine's configuration file."""
        return {item.key: item.value for item in self.values}

    def to_status(self) -> dict[str, Any]:
        """`status.effective`."""
        return {
            "release": self.release,
            "digest": self.digest,
            "values": [{"key": item.key, "value": item.value, "source": item.source} for item in self.values],
        }


def resolve(references: References) -> Effective | Problem:
    """The effective configuration, or the first value that the release does not accept."""
    release, spec = references.release, references.deployment.spec
    schema = {entry.key: entry for entry in release.spec.config_schema or []}
    chosen = _user_values(spec)
    if isinstance(chosen, Problem):
        return chosen
    for key, (field, value) in sorted(chosen.items()):
        problem = check_value(schema, key, value, field, release.metadata.name)
        if problem is not None:
            return problem
    values: dict[str, EffectiveValue] = {
        key: EffectiveValue(key, value, "release") for key, value in _release_defaults(references).items()
    }
    values |= {key: EffectiveValue(key, value, "user") for key, (_, value) in chosen.items()}
    values |= {
        key: EffectiveValue(key, value, "operator")
        for key, value in _operator_values(references).items()
        if key in schema
    }
    ordered = tuple(values[key] for key in sorted(values))
    return Effective(release.metadata.name, ordered, _digest(ordered))


def check_value(schema: Mapping[str, ConfigKey], key: str, value: Any, field: str, release: str) -> Problem | None:
    """What is wrong with one configuration value; `field` is its path in the spec that carries it."""
    entry = schema.get(key)
    if entry is None:
        close = difflib.get_close_matches(key, [name for name in schema if name not in OPERATOR_KEYS], n=1)
        hint = f"did you mean {close[0]}?" if close else f"its configSchema lists {_listing(schema)}"
        return Problem(
            Reason.UNKNOWN_ENGINE_CONFIG, f"{field}: EngineRelease {release} knows no configuration key {key}; {hint}"
        )
    wrong = _mismatch(entry, value)
    if wrong is None:
        return None
    return Problem(Reason.INVALID_ENGINE_CONFIG, f"{field}: {json.dumps(value)} is not allowed for {key}; {wrong}")


def check_release(release: EngineRelease) -> Problem | None:
    """The first default of a release that its own schema does not accept."""
    schema = {entry.key: entry for entry in release.spec.config_schema or []}
    for defaults in release.spec.defaults or []:
        for key, value in sorted(defaults.values.items()):
            field = f"spec.defaults[{defaults.architecture}].values.{key}"
            problem = check_value(schema, key, value, field, release.metadata.name)
            if problem is not None:
                return problem
    return None


def _user_values(spec: ModelDeploymentSpec) -> dict[str, tuple[str, Any]] | Problem:
    """Configuration key -> (path in the spec, value) for all that the user set."""
    typed = (*_typed_values(spec), *_typed_choices(spec))
    chosen = {key: (field, value) for key, field, value in typed if value is not None}
    free = (spec.engine.config if spec.engine else None) or {}
    for key in sorted(free):
        field = f"spec.engine.config.{key}"
        if key in OPERATOR_KEYS:
            return Problem(
                Reason.INVALID_ENGINE_CONFIG,
                f"{field}: {key} is set by the operator from the deployment; remove it",
            )
        if key in chosen:
            return Problem(
                Reason.INVALID_ENGINE_CONFIG, f"{field}: {key} is already set by {chosen[key][0]}; set it in one place"
            )
        chosen[key] = (field, free[key])
    return chosen


def _typed_values(spec: ModelDeploymentSpec) -> Iterable[tuple[str, str, Any]]:
    cache, scheduling, limits, structured = spec.cache, spec.scheduling, spec.limits, spec.structured_output
    if cache is not None:
        yield "page_tokens", "spec.cache.pageTokens", cache.page_tokens
        yield "kv_cache_bytes", "spec.cache.device.bytes", cache.device.bytes if cache.device else None
    if scheduling is not None:
        yield "max_running", "spec.scheduling.maxRunning", scheduling.max_running
        yield "max_batch_tokens", "spec.scheduling.maxBatchTokens", scheduling.max_batch_tokens
        yield "max_waiting", "spec.scheduling.maxWaiting", scheduling.max_waiting
    if limits is not None:
        yield "default_max_tokens", "spec.limits.defaultMaxTokens", limits.default_max_tokens
        yield "max_tokens", "spec.limits.maxTokens", limits.max_tokens
        yield "max_seconds", "spec.limits.maxSeconds", limits.max_seconds
        yield "max_prompt_tokens", "spec.limits.maxPromptTokens", limits.max_prompt_tokens
    if structured is not None:
        field = "spec.structuredOutput"
        yield "structured_max_tokens", f"{field}.maxTokens", structured.max_tokens
        yield "structured_max_seconds", f"{field}.maxSeconds", structured.max_seconds
        yield "structured_max_whitespace", f"{field}.maxWhitespaceRun", structured.max_whitespace_run


def _typed_choices(spec: ModelDeploymentSpec) -> Iterable[tuple[str, str, Any]]:
    """Fields whose values are words, in the engine's words."""
    if spec.determinism is not None:
        yield "determinism", "spec.determinism", _ENGINE_WORDS[spec.determinism]
    if spec.scheduling is not None and spec.scheduling.policy is not None:
        yield "admission", "spec.scheduling.policy", _ENGINE_WORDS[spec.scheduling.policy]
    if spec.speculative is not None:
        yield "speculation", "spec.speculative.method", _ENGINE_WORDS[spec.speculative.method]
        yield "draft_tokens", "spec.speculative.maxTokens", spec.speculative.max_tokens


def _release_defaults(references: References) -> Mapping[str, Any]:
    architecture = references.gpu_class.spec.architecture
    for entry in references.release.spec.defaults or []:
        if entry.architecture == architecture:
            return entry.values
    return {}


def _operator_values(references: References) -> dict[str, Any]:
    deployment = references.deployment
    values: dict[str, Any] = {"served_names": list(served_names(deployment.metadata.name, deployment.spec))}
    if deployment.spec.precision in ENGINE_DTYPES:
        values["dtype"] = deployment.spec.precision
    return values


def served_names(name: str, spec: ModelDeploymentSpec) -> tuple[str, ...]:
    """Model names that clients may ask for: the deployment's and the Model's, each once."""
    return tuple(dict.fromkeys((name, spec.model_ref.name)))


_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
    "list": (list,),
}


def _mismatch(entry: ConfigKey, value: Any) -> str | None:
    """What the schema says against a value. Python's bool is an int, JSON's is not."""
    fits = isinstance(value, _KINDS[entry.type]) and isinstance(value, bool) == (entry.type == "boolean")
    if not fits:
        return f"it must be of type {entry.type}"
    if entry.minimum is not None and value < entry.minimum:
        return f"the smallest value is {entry.minimum:g}"
    if entry.maximum is not None and value > entry.maximum:
        return f"the largest value is {entry.maximum:g}"
    items = value if entry.type == "list" else [value]
    if entry.values is not None and any(item not in entry.values for item in items):
        return f"use one of: {', '.join(entry.values)}"
    return None


def _listing(schema: Mapping[str, ConfigKey]) -> str:
    return ", ".join(sorted(key for key in schema if key not in OPERATOR_KEYS)) or "no keys"


def _digest(values: tuple[EffectiveValue, ...]) -> str:
    document = json.dumps({item.key: item.value for item in values}, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(document.encode()).hexdigest()
