"""From a merged configuration to an `EngineSetup`: finds the model, reads its shape, fits the numbers.

The last step before processes start; everything that can be refused is refused here, with the key's name.
"""

from collections.abc import Mapping
from pathlib import Path

from forebay.contract.errors import InvalidSpec
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
from forebay.engine.resolve import ModelFacts, resolve
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
    features = cpu_features()
    problem = cpu_problem(model, features, config.dtype, config.page_tokens)
    compute = choose_compute(config.dtype, features, config.kernels, config.determinism, problem)
    facts = ModelFacts(
        name=path.stem if path.is_file() else path.resolve().name,
        max_positions=model.max_positions,
        weight_bytes=_weight_bytes(model, compute),
        kv_page_bytes=kv_bytes_per_page(model, compute.kv, config.page_tokens),
    )
    reasons = dict(settings)
    dtype, kernels = reasons["dtype"], reasons["kernels"]
    reasons["dtype"] = Setting(dtype.value, dtype.source, f"{dtype.reason}; {compute.reason}")
    reasons["kernels"] = Setting(compute.kernels, kernels.source, f"{kernels.reason}; {problem or 'the CPU has them'}")
    return EngineSetup(resolve(config, reasons, facts, machine), path, model, compute, environment)


def _weight_bytes(model: ModelConfig, compute: Compute) -> int:
    if compute.kernels == "cpu":
        return packed_weight_bytes(model, compute.weights)
    return weight_bytes(model, compute.matmul)
