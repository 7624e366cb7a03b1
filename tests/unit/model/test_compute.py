"""Precision choice by CPU flags."""

from pathlib import Path

import pytest

from forebay.contract.errors import InvalidSpec
from forebay.engine.runner.compute import choose_compute, cpu_features, parse_cpuinfo

X86 = (
    "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx512f {}\n\nprocessor\t: 1\nmodel name\t: Other\n"
)


def test_torch_multiplies_bf16_only_with_hardware_for_it() -> None:
    with_hardware = choose_compute("bf16", parse_cpuinfo(X86.format("avx512_bf16")))
    without = choose_compute("bf16", parse_cpuinfo(X86.format("avx512_vnni")))
    assert (with_hardware.matmul, with_hardware.kv) == ("bf16", "bf16")
    assert (without.values, without.matmul, without.kv) == ("bf16", "fp32", "bf16")
    assert "no bf16 products" in without.reason


def test_an_arm_cpu_is_read_by_its_features_line() -> None:
    features = parse_cpuinfo("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n")
    assert features.model_name == "unknown"
    assert choose_compute("bf16", features).matmul == "bf16"


@pytest.mark.parametrize("kernels", ["auto", "cpu", "torch"])
def test_fp32_is_fp32_everywhere(kernels: str) -> None:
    compute = choose_compute("fp32", parse_cpuinfo(""), kernels)
    assert (compute.values, compute.weights, compute.matmul, compute.kv) == ("fp32",) * 4


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_quantized_weights_are_the_same_on_both_paths(dtype: str) -> None:
    features = parse_cpuinfo(X86.format("avx512_bf16"))
    kernels, torch_path = (choose_compute(dtype, features, name) for name in ("cpu", "torch"))
    assert (kernels.values, kernels.weights, kernels.kv) == (torch_path.values, torch_path.weights, torch_path.kv)
    assert (kernels.matmul, torch_path.matmul) == (dtype, "bf16")


def test_auto_takes_the_cpu_kernels_and_says_why_when_it_cannot() -> None:
    features = parse_cpuinfo(X86.format("avx512_bf16"))
    assert choose_compute("bf16", features, "auto").kernels == "cpu"
    without = choose_compute("bf16", features, "auto", cpu_problem="no compiler built them")
    assert without.kernels == "torch"
    assert "no compiler built them" in without.reason
    with pytest.raises(InvalidSpec, match="no compiler built them") as caught:
        choose_compute("bf16", features, "cpu", cpu_problem="no compiler built them")
    assert caught.value.field == "kernels"


def test_batch_invariance_is_refused_where_torch_computes() -> None:
    features = parse_cpuinfo(X86.format("avx512_bf16"))
    assert choose_compute("bf16", features, "auto", "batch_invariant").batch_invariant
    for kernels, problem in (("torch", ""), ("auto", "the CPU has no AVX2")):
        with pytest.raises(InvalidSpec, match=problem or "kernels is torch") as caught:
            choose_compute("bf16", features, kernels, "batch_invariant", problem)
        assert caught.value.field == "determinism"


def test_an_unknown_precision_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidSpec, match=r"'int3' is not supported; supported: bf16, fp32, int8, int4") as caught:
        choose_compute("int3", parse_cpuinfo(""))
    assert caught.value.field == "dtype"


def test_a_missing_cpuinfo_means_no_features(tmp_path: Path) -> None:
    assert cpu_features(tmp_path / "absent").flags == frozenset()
