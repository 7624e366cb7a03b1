"""Which kernels a start chooses, and that the effective configuration says why."""

from pathlib import Path

import pytest

from forebay.contract.errors import InvalidSpec
from forebay.engine.cgroup import Machine
from forebay.engine.config import flag_layer, merge, read_environment
from forebay.engine.server.process import EngineSetup
from forebay.engine.server.setup import prepare
from forebay.kernels.cpu import CpuLibrary, load
from model_build import save_tiny

MACHINE = Machine(cpus=2, cpus_reason="two CPUs", memory_bytes=4 << 30, memory_reason="limit")


def setup_of(folder: Path, **flags: str) -> EngineSetup:
    config, settings = merge([flag_layer({"model": str(folder), **flags})])
    return prepare(config, settings, MACHINE, read_environment())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny("llama", folder)
    return folder


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "int8", "int4"])
def test_the_cpu_kernels_serve_every_precision_when_they_can(tiny: Path, dtype: str) -> None:
    setup = setup_of(tiny, dtype=dtype, determinism="batch_invariant")
    library = load()
    assert isinstance(library, CpuLibrary)
    assert (setup.compute.kernels, setup.compute.matmul) == ("cpu", dtype)
    kernels = setup.resolved.settings["kernels"]
    assert kernels.value == "cpu"
    assert library.describe() in kernels.reason


def test_torch_serves_with_the_reason_when_they_cannot(tiny: Path) -> None:
    kernels = setup_of(tiny, page_tokens="24").resolved.settings["kernels"]
    assert kernels.value == "torch"
    assert "page_tokens 24 is not a multiple of 16" in kernels.reason
    with pytest.raises(InvalidSpec, match="page_tokens 24") as caught:
        setup_of(tiny, page_tokens="24", kernels="cpu")
    assert caught.value.field == "kernels"


def test_both_paths_know_quantized_weights(tiny: Path) -> None:
    sizes = {dtype: setup_of(tiny, dtype=dtype).compute.matmul for dtype in ("int8", "int4")}
    assert sizes == {"int8": "int8", "int4": "int4"}
    assert setup_of(tiny, dtype="int8", kernels="torch").compute.weights == "int8"
    assert setup_of(tiny, dtype="int8", kernels="torch").compute.matmul in {"bf16", "fp32"}
