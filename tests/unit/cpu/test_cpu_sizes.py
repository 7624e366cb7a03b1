"""What the configuration says of packed weights, and which models the cpu kernels take."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cpu_build import executor_of
from forebay.engine.cpu.pack import KINDS, Packer
from forebay.engine.cpu.sizes import matrix_bytes, packed_weight_bytes
from forebay.engine.cpu.support import cpu_problem
from forebay.engine.loader.checkpoint import read_config
from forebay.engine.runner.compute import parse_cpuinfo
from forebay.kernels.cpu import pack_linear
from model_build import FAMILIES, save_tiny

V4 = parse_cpuinfo("flags: avx512f avx512bw avx512vl avx512dq avx512cd avx512_vnni avx2 fma f16c bmi2\n")


@pytest.mark.parametrize("weights", list(KINDS))
@pytest.mark.parametrize("shape", [(48, 64), (50, 96), (512, 64), (1, 32)])
def test_matrix_bytes_equal_what_packing_takes(weights: str, shape: tuple[int, int]) -> None:
    packed = pack_linear(torch.randn(shape), KINDS[weights], minimums=True)
    assert matrix_bytes(*shape, weights) == packed.nbytes


@pytest.mark.parametrize("weights", list(KINDS))
@pytest.mark.parametrize("family", list(FAMILIES))
def test_weight_bytes_equal_what_a_load_packs(
    family: str, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    biased: dict[str, Any] = {"attention_bias": True, "mlp_bias": True} if family == "llama" else {}
    save_tiny(family, tmp_path, "50GB", **biased)
    packed: list[int] = []
    pack, vector = Packer.matrix, Packer.vector

    def counted_matrix(packer: Packer, *arguments: Any) -> Any:
        result = pack(packer, *arguments)
        packed.append(result.nbytes - (0 if result.bias is None else result.bias.nbytes))
        return result

    def counted_vector(packer: Packer, values: torch.Tensor) -> torch.Tensor:
        # Biases pass here too, and are padded to panels when they are packed.
        result = vector(packer, values)
        is_bias = values.shape[0] not in {64, 16}
        packed.append(-(-result.nbytes // 192) * 192 if is_bias else result.nbytes)
        return result

    monkeypatch.setattr(Packer, "matrix", counted_matrix)
    monkeypatch.setattr(Packer, "vector", counted_vector)
    config = read_config(tmp_path)
    executor_of(tmp_path, weights, "cpu")
    table = config.vocab * config.hidden * (4 if weights == "fp32" else 2)
    estimate = packed_weight_bytes(config, weights)
    # Biases of 64 outputs are counted unpadded above.
    assert 0 <= estimate - (sum(packed) + table) <= config.layers * 2 * 4 * 47
    assert estimate > sum(packed)


def test_models_that_the_kernels_cannot_take_are_named(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    config = read_config(tmp_path)
    assert cpu_problem(config, V4, "int4", 16) == ""
    assert "page_tokens 24" in cpu_problem(config, V4, "bf16", 24)
    assert "head size 24" in cpu_problem(replace(config, head_dim=24), V4, "bf16", 16)
    assert "head size 512" in cpu_problem(replace(config, head_dim=512), V4, "bf16", 16)
    assert cpu_problem(replace(config, intermediate=144), V4, "int8", 16) == ""
    assert "feed-forward width 144" in cpu_problem(replace(config, intermediate=144), V4, "int4", 16)
    assert "no native module" in cpu_problem(replace(config, architecture="olmo2"), V4, "bf16", 16)


def test_a_cpu_without_vectors_is_named(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    assert "AVX2" in cpu_problem(read_config(tmp_path), parse_cpuinfo("flags: sse2\n"), "bf16", 16)
