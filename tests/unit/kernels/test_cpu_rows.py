"""The routines that know rows only, of every build, against their torch references."""

import pytest
import torch

from cpu_kernels import VARIANT_NAMES, VARIANTS, library, plain_step, relative_error, run
from forebay.kernels import cpu
from forebay.kernels.cpu.convert.reference import quantize_reference
from forebay.kernels.cpu.embed.reference import embed_reference
from forebay.kernels.cpu.gate.reference import gate_reference
from forebay.kernels.cpu.linear.packing import quantize_int4
from forebay.kernels.cpu.linear.reference import linear_reference, unpack
from forebay.kernels.cpu.moe.reference import moe_reference
from forebay.kernels.cpu.norm.reference import norm_reference

KINDS = list(cpu.NumberKind)
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=VARIANT_NAMES)
both_builds = pytest.mark.parametrize("variant", VARIANTS[::2], ids=VARIANT_NAMES[::2])


@every_variant
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("n", "k"), [(16, 32), (48, 64), (50, 96), (100, 544), (193, 1536)])
def test_linear_agrees_with_the_weights_that_were_packed(
    variant: tuple[str, bool], kind: cpu.NumberKind, n: int, k: int
) -> None:
    torch.manual_seed(n)
    loaded, weight, bias = library(variant), torch.randn(n, k) * k**-0.5, torch.randn(n)
    for minimums in (False, True) if kind == cpu.NumberKind.INT4 else (False,):
        packed = cpu.pack_linear(weight, kind, bias, minimums=minimums)
        for rows in (1, 2, 3, 4, 7, 8, 9, 21):
            x = torch.randn(rows, k)
            activation = cpu.allocate_activation(cpu.activation_kind(kind).allocate, rows, k)
            out = torch.full((rows + 1, n), 2.0)
            ops = [cpu.convert(x, activation), cpu.linear(activation, packed, out, accumulate=True)]
            run(loaded, ops, plain_step(rows))
            assert relative_error(out[:rows], linear_reference(activation.float(), packed) + 2) < 1e-5
            assert torch.equal(out[rows:], torch.full((1, n), 2.0)), "a row after the last was written"


@pytest.mark.parametrize(("kind", "worst"), [("FP32", 1e-7), ("BF16", 3e-3), ("INT8", 1e-2), ("INT4", 0.12)])
def test_packing_keeps_weights_within_their_precision(kind: str, worst: float) -> None:
    weight = torch.randn(70, 128)
    assert relative_error(unpack(cpu.pack_linear(weight, cpu.NumberKind[kind])), weight) < worst


def test_given_int4_values_are_kept_exactly() -> None:
    weight = torch.randn(40, 64)
    values, scales, mins = quantize_int4(weight, minimums=True)
    assert mins is not None
    exact = values.double() * scales.double().repeat_interleave(32, 1) + mins.double().repeat_interleave(32, 1)
    assert torch.equal(unpack(cpu.pack_int4_values(values, scales, mins)), exact)


def test_groups_of_zeros_and_of_one_value_stay_themselves() -> None:
    weight = torch.zeros(3, 64)
    weight[1] = 0.5
    for minimums in (False, True):
        packed = cpu.pack_linear(weight, cpu.NumberKind.INT4, minimums=minimums)
        assert (unpack(packed) - weight).abs().max() < 1e-3
    assert (unpack(cpu.pack_linear(weight, cpu.NumberKind.INT8)) - weight).abs().max() < 1e-6


@both_builds
@pytest.mark.parametrize("width", [16, 64, 576, 1040])
def test_norm_writes_every_kind_of_activation(variant: tuple[str, bool], width: int) -> None:
    x, weight, loaded = torch.randn(5, width) * 3, torch.rand(width) + 0.5, library(variant)
    wanted = norm_reference(x, weight, 1e-5)
    for kind, worst in ((cpu.NumberKind.FP32, 1e-6), (cpu.NumberKind.BF16, 4e-3), (cpu.NumberKind.INT8, 1.5e-2)):
        out = cpu.allocate_activation(kind, 5, width)
        run(loaded, [cpu.norm(x, weight, 1e-5, out)], plain_step(5))
        assert relative_error(out.float(), wanted) < worst
    residual = torch.randn(5, width)
    expected = residual + wanted
    run(loaded, [cpu.norm_add(x, weight, 1e-5, residual)], plain_step(5))
    assert relative_error(residual, expected) < 1e-6


@both_builds
def test_quantization_is_the_references_with_its_sums(variant: tuple[str, bool]) -> None:
    x = torch.randn(6, 96)
    x[2] = 0
    x[3, 5] = 1e4
    out = cpu.allocate_activation(cpu.NumberKind.INT4, 6, 96)
    run(library(variant), [cpu.convert(x, out)], plain_step(6))
    values, scales = quantize_reference(x)
    assert torch.equal(out.data, values)
    assert out.scales is not None
    assert torch.allclose(out.scales, scales)
    assert out.sums is not None
    assert torch.equal(out.sums, torch.stack((values[:, :64].int().sum(1), values[:, 64:].int().sum(1)), 1).int())
    assert out.group_sums is not None
    assert torch.equal(out.group_sums, values.int().view(6, 3, 32).sum(2).int())


@both_builds
@pytest.mark.parametrize("function", list(cpu.GateFunction), ids=lambda function: function.name)
def test_gate_over_the_whole_range(variant: tuple[str, bool], function: cpu.GateFunction) -> None:
    gate_up = torch.cat((torch.linspace(-200, 200, 512), torch.full((512,), 1.5)))[None]
    out = cpu.allocate_activation(cpu.NumberKind.FP32, 1, 512)
    run(library(variant), [cpu.gate(gate_up, out, function)], plain_step(1))
    wanted = gate_reference(gate_up, function == cpu.GateFunction.GELU_TANH)
    assert torch.allclose(out.data.double(), wanted, rtol=2e-6, atol=1e-6)


@both_builds
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_embed_and_gather_take_the_right_rows(variant: tuple[str, bool], dtype: torch.dtype) -> None:
    table, x, chosen = torch.randn(20, 48).to(dtype), torch.zeros(7, 48), torch.zeros(3, 48)
    step = plain_step(7, sampled=(6, 0, 3))
    step.tokens[:] = [3, 19, 0, 3, 7, 8, 1]
    run(library(variant), [cpu.embed(table, x, 1.5), cpu.gather(x, chosen)], step)
    assert torch.allclose(x, embed_reference(table, torch.from_numpy(step.tokens), 1.5))
    assert torch.equal(chosen, x[[6, 0, 3]])


@both_builds
@pytest.mark.parametrize("kind", [cpu.NumberKind.FP32, cpu.NumberKind.INT8, cpu.NumberKind.INT4])
@pytest.mark.parametrize("normalise", [True, False])
def test_a_mixture_of_experts_is_the_weighted_sum(
    variant: tuple[str, bool], kind: cpu.NumberKind, normalise: bool
) -> None:
    torch.manual_seed(3)
    tokens, width, inner, experts, top_k = 9, 64, 32, 6, 3
    need = cpu.activation_kind(kind).allocate
    x, logits, out = torch.randn(tokens, width), torch.randn(tokens, experts) * 2, torch.zeros(tokens, width)
    up = [cpu.pack_linear(torch.randn(2 * inner, width) * 0.1, kind) for _ in range(experts)]
    down = [cpu.pack_linear(torch.randn(width, inner) * 0.1, kind) for _ in range(experts)]
    routing = cpu.allocate_routing(tokens, experts, top_k)
    rows = tokens * top_k
    start, inside = cpu.allocate_activation(need, tokens, width), cpu.allocate_activation(need, rows, inner)
    ordered = cpu.allocate_activation(need, rows, width)
    gate_up, y = torch.zeros(rows, 2 * inner), torch.zeros(rows, width)
    ops = [
        cpu.convert(x, start),
        cpu.route(logits, routing, normalise=normalise),
        cpu.sorted_gather(start, routing, ordered),
        cpu.linear(ordered, cpu.stack_experts(up), gate_up, select=routing.rows, offsets=routing.offsets),
        cpu.gate(gate_up, inside, cpu.GateFunction.SILU, routing.rows),
        cpu.linear(inside, cpu.stack_experts(down), y, select=routing.rows, offsets=routing.offsets),
        cpu.combine(y, routing, out),
    ]
    run(library(variant), ops, plain_step(tokens))

    def expert(index: int, row: torch.Tensor) -> torch.Tensor:
        return gate_reference(row[None] @ unpack(up[index]).T, gelu_tanh=False)[0] @ unpack(down[index]).T

    functions = [lambda row, i=i: expert(i, row) for i in range(experts)]
    wanted = moe_reference(start.float(), logits, functions, top_k, normalise)
    assert relative_error(out, wanted) < (1e-5 if kind == cpu.NumberKind.FP32 else 1e-2)


def test_buffers_of_the_wrong_shape_are_refused() -> None:
    packed = cpu.pack_linear(torch.randn(48, 64), cpu.NumberKind.INT8)
    wrong_kind = cpu.allocate_activation(cpu.NumberKind.BF16, 2, 64)
    with pytest.raises(ValueError, match="BF16 rows"):
        cpu.linear(wrong_kind, packed, torch.zeros(2, 48))
    right = cpu.allocate_activation(cpu.NumberKind.INT8, 2, 64)
    with pytest.raises(ValueError, match="out is"):
        cpu.linear(right, packed, torch.zeros(2, 47))
    with pytest.raises(ValueError, match="group sums"):
        cpu.linear(right, cpu.pack_linear(torch.randn(48, 64), cpu.NumberKind.INT4), torch.zeros(2, 48))
    with pytest.raises(ValueError, match="multiple of 16"):
        cpu.pack_linear(torch.randn(48, 40), cpu.NumberKind.BF16)
    with pytest.raises(ValueError, match="contiguous"):
        cpu.norm(torch.zeros(32, 2).T, torch.ones(32), 1e-5, cpu.allocate_activation(cpu.NumberKind.FP32, 2, 32))


def test_a_step_larger_than_a_buffer_is_refused() -> None:
    loaded, x = library(VARIANTS[2]), torch.zeros(4, 32)
    gathered = cpu.gather(x, torch.zeros(2, 32))
    out = cpu.allocate_activation(cpu.NumberKind.FP32, 4, 32)
    with pytest.raises(ValueError, match="rows for 4 tokens"):
        cpu.Tape(loaded, [cpu.convert(x, out)], 5)
    tape = cpu.Tape(loaded, [cpu.convert(x, out), gathered], 4)
    tape.run(plain_step(4, (3, 0)))
    with pytest.raises(ValueError, match="at most 2"):
        tape.run(plain_step(4, (0, 1, 2)))
    with pytest.raises(ValueError, match="2 sampled of 3 tokens"):
        tape.run(plain_step(3, (3, 0)))
    with pytest.raises(ValueError, match="the tape has 4"):
        tape.run(plain_step(5))
