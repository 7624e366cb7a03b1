"""From a merged configuration to an `EngineSetup`: finds the model, reads its shape, fits the numbers.

The last step before processes start; everything that can be refused is refused here, with the key's name.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from forebay.contract.errors import InvalidSpec
from forebay.engine.cache_plan import CacheGroup, ModelFacts, pool_groups
from forebay.engine.cgroup import Machine
from forebay.engine.config import Environment, Setting
from forebay.engine.cpu.sizes import packed_weight_bytes
from forebay.engine.cpu.support import cpu_problem
from forebay.engine.keys import EngineConfig
from forebay.engine.loader.checkpoint import (
    ModelConfig,
    kv_bytes_per_page,
    read_config,
    resolve_model_path,
    weight_bytes,
)
from forebay.engine.resolve import resolve
from forebay.engine.runner.compute import Compute, choose_compute, cpu_features
from forebay.engine.server.process import EngineSetup


def prepare(
    config: EngineConfig, settings: Mapping[str, Setting], machine: Machine, environment: Environment
) -> EngineSetup:
    """Everything a start needs; raises `InvalidSpec` naming the key."""
    if not config.model:
        raise InvalidSpec("model: is required; give --model PATH", field="model")
    path = resolve_model_path(Path(config.model))
    model = read_config(path)
    draft_path = resolve_model_path(Path(config.draft_model)) if config.draft_model else None
    draft = read_config(draft_path) if draft_path is not None else None
    compute = _compute(config, model, draft)
    facts = ModelFacts(
        name=path.stem if path.is_file() else path.resolve().name,
        max_positions=model.max_positions,
        weight_bytes=_weight_bytes(model, compute) + (0 if draft is None else _weight_bytes(draft, compute)),
        groups=_cache_groups(config, model, draft, compute),
    )
    reasons = dict(settings)
    for name, value in (("dtype", config.dtype), ("kernels", compute.kernels)):
        given = reasons[name]
        reasons[name] = Setting(value, given.source, f"{given.reason}; {compute.reason}")
    resolved = resolve(config, reasons, facts, machine)
    return EngineSetup(resolved, path, model, compute, environment, pool_groups(facts, resolved.pages), draft_path)


def _compute(config: EngineConfig, model: ModelConfig, draft: ModelConfig | None) -> Compute:
    """Formats and kernels that serve the model, and its draft model if there is one."""
    features = cpu_features()
    problem = cpu_problem(model, features, config.dtype, config.page_tokens)
    if not problem and draft is not None:
        problem = cpu_problem(draft, features, config.dtype, config.page_tokens)
        problem = problem and f"draft model: {problem}"
    return choose_compute(config.dtype, features, config.kernels, config.determinism, problem)


def _weight_bytes(model: ModelConfig, compute: Compute) -> int:
    if compute.kernels == "cpu":
        return packed_weight_bytes(model, compute.weights)
    return weight_bytes(model, compute.matmul, is_quantized=compute.weights != compute.values)


def _cache_groups(
    config: EngineConfig, model: ModelConfig, draft: ModelConfig | None, compute: Compute
) -> tuple[CacheGroup, ...]:
    groups = [
        CacheGroup(group.name, group.window_tokens, kv_bytes_per_page(model, compute.kv, config.page_tokens, group))
        for group in model.layer_groups
    ]
    if draft is not None:
        own = kv_bytes_per_page(draft, compute.kv, config.page_tokens)
        groups[0] = replace(groups[0], page_bytes=groups[0].page_bytes + own)
    return tuple(groups)
