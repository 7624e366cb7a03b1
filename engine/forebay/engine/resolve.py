"""Fits the configuration to one model on one machine, once, before anything is allocated.

`resolve` is pure: values and facts in, a frozen `Resolved` out, in which every number is final and says why it is
what it is. A configuration that cannot run is an `InvalidSpec` that names the key and the numbers, never a crash
later. Printed once at start and served at /v1/forebay/config; the digest compares two engines.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forebay.contract.errors import InvalidSpec
from forebay.engine.cache_plan import ModelFacts, capacity_tokens, fit_cache
from forebay.engine.cgroup import Machine
from forebay.engine.config import Setting
from forebay.engine.keys import EngineConfig

_DIGEST_LEAVES_OUT = ("host", "port", "model", "draft_model", "api_keys_file", "log_level")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The configuration that runs: `config` with every number fitted, pages by layer group, and a reason per value."""

    config: EngineConfig
    pages: tuple[int, ...]
    max_sequence_tokens: int
    settings: Mapping[str, Setting]
    digest: str

    def to_json(self) -> dict[str, Any]:
        """The document of /v1/forebay/config."""
        values = {
            name: {"value": setting.value, "source": setting.source, "reason": setting.reason}
            for name, setting in sorted(self.settings.items())
        }
        return {"values": values, "digest": self.digest}


def resolve(config: EngineConfig, settings: Mapping[str, Setting], model: ModelFacts, machine: Machine) -> Resolved:
    """Fix every open number; raises `InvalidSpec` naming the key when the configuration cannot run here."""
    fitted = dict(settings)

    def fit(name: str, value: Any, reason: str) -> None:
        fitted[name] = Setting(value, "resolved", reason)

    if config.max_batch_tokens < config.max_running:
        raise InvalidSpec(
            f"max_batch_tokens {config.max_batch_tokens} must be at least max_running {config.max_running}",
            field="max_batch_tokens",
        )
    if config.speculation == "draft" and not config.draft_model:
        raise InvalidSpec("speculation draft needs draft_model, the path of a small model", field="draft_model")
    if config.threads == 0:
        fit("threads", machine.cpus, machine.cpus_reason)
    if not config.served_names:
        fit("served_names", (model.name,), "name of the model file")
    cache = fit_cache(config, model, machine)
    for name, (value, reason) in cache.settings.items():
        fit(name, value, reason)
    pages = cache.pages
    sequence, sequence_reason = _sequence_tokens(config, model, pages)
    fit("max_sequence_tokens", sequence, sequence_reason)
    _fit_length(config, "max_prompt_tokens", sequence - 1, sequence_reason, fit)
    _fit_length(config, "max_tokens", sequence - 1, sequence_reason, fit)
    max_tokens = int(fitted["max_tokens"].value)
    if config.default_max_tokens > max_tokens:
        fit("default_max_tokens", max_tokens, "no more than max_tokens")
    if not 0 < config.structured_max_tokens <= max_tokens:
        fit("structured_max_tokens", max_tokens, "max_tokens")
    if not 0 < config.structured_max_seconds <= config.max_seconds:
        fit("structured_max_seconds", config.max_seconds, "max_seconds")
    names = {name: setting.value for name, setting in fitted.items() if name != "max_sequence_tokens"}
    final = replace(config, **names)
    return Resolved(final, pages, sequence, fitted, _digest(fitted))


def _sequence_tokens(config: EngineConfig, model: ModelFacts, pages: Sequence[int]) -> tuple[int, str]:
    in_cache = capacity_tokens(config, model, pages)
    if in_cache < model.max_positions:
        return in_cache, f"what the KV cache holds: {' + '.join(map(str, pages))} pages of {config.page_tokens} tokens"
    return model.max_positions, "context length of the model"


def _fit_length(config: EngineConfig, name: str, most: int, reason: str, fit: Any) -> None:
    """A length limit of 0 takes what fits; one that is larger than what fits is an error of the configuration."""
    asked = getattr(config, name)
    if asked > most:
        raise InvalidSpec(f"{name} {asked} is more than {most} ({reason})", field=name)
    if asked == 0:
        fit(name, most, reason)


def _digest(settings: Mapping[str, Setting]) -> str:
    """sha256 over the values that change answers or capacity, not over where the engine listens."""
    values = {name: setting.value for name, setting in settings.items() if name not in _DIGEST_LEAVES_OUT}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
