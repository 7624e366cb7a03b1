"""Filters and draws of one row of logits: borders, ties and odd inputs."""

import time

import numpy as np
import pytest

from forebay.engine.request import SamplingParams
from forebay.engine.sampling.draw import draw, kept_ids
from forebay.engine.sampling.philox import uniform
from sampling_build import Floats, Reference, choose, make_row

RANDOM = np.random.default_rng(3)
NORMAL: Floats = RANDOM.standard_normal(5000).astype(np.float32)


def draws(logits: Floats, params: SamplingParams, count: int) -> set[int]:
    """Distinct tokens of `count` draws at successive positions."""
    numbers = uniform(np.full(count, params.seed, dtype=np.uint64), np.arange(count, dtype=np.uint64))
    return {draw(logits, params, float(number)) for number in numbers}


def test_ties_at_the_top_k_border_keep_the_lowest_ids() -> None:
    logits = np.array([0.0, 1.0, 1.0, 2.0, 1.0, 1.0], dtype=np.float32)
    assert draws(logits, SamplingParams(temperature=1.0, top_k=3), 500) == {1, 2, 3}


def test_ties_at_the_top_k_border_of_a_large_vocabulary_keep_the_lowest_ids() -> None:
    logits = np.zeros(50_000, dtype=np.float32)
    logits[[49_999, 7, 30_000, 123]] = [2.0, 1.0, 1.0, 1.0]
    assert kept_ids(logits, SamplingParams(temperature=0.5, top_k=3)).tolist() == [7, 123, 49_999]
    assert kept_ids(logits, SamplingParams(temperature=0.5, top_k=6)).tolist() == [0, 1, 7, 123, 30_000, 49_999]


def test_a_tie_at_the_top_p_border_is_cut_to_the_exact_number() -> None:
    logits = np.zeros(50_000, dtype=np.float32)
    assert kept_ids(logits, SamplingParams(temperature=1.0, top_p=0.1)).tolist() == list(range(5000))


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    logits = np.zeros(50_000, dtype=np.float32)
    logits[[7, 40_000]] = 5.0
    assert choose(make_row(SamplingParams(), 50_000), logits) == 7


@pytest.mark.parametrize(
    "params", [SamplingParams(1.0, top_p=1e-9), SamplingParams(1.0, min_p=1.0), SamplingParams(1.0, 1)]
)
def test_the_tightest_filters_are_greedy(params: SamplingParams) -> None:
    assert draws(NORMAL, params, 50) == {int(NORMAL.argmax())}


@pytest.mark.parametrize("temperature", [1e-5, 1e-37, 1e-45, 1e-300])
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 1.0, 0.0), (3, 0.5, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.1)])
def test_a_tiny_temperature_is_greedy(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    params = SamplingParams(temperature, top_k, top_p, min_p=min_p)
    assert draws(NORMAL * 5, params, 50) == {int(NORMAL.argmax())}


@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("size", [5000, 49_152])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(40, 1.0, 0.0), (3000, 1.0, 0.0), (0, 0.9, 0.0), (0, 0.9999, 0.0), (700, 0.5, 0.0), (0, 1.0, 0.2), (64, 0.9, 0.1)],
)
def test_a_large_vocabulary_is_filtered_as_the_definition_says(
    scale: float, size: int, top_k: int, top_p: float, min_p: float
) -> None:
    logits = (np.random.default_rng(size).standard_normal(size) * scale).astype(np.float32)
    params = SamplingParams(0.8, top_k, top_p, min_p=min_p)
    expected = Reference(params, (), ()).kept(logits.astype(np.float64))
    found = kept_ids(logits, params)
    # A border that the mass crosses within rounding may fall one token to either side.
    slack = 0 if top_p == 1.0 and min_p == 0.0 else max(2, len(expected) // 1000)
    assert abs(len(found) - len(expected)) <= slack
    agreed = min(len(found), len(expected))
    assert (
        set(expected[: agreed - slack])
        <= set(found.tolist())
        <= set(expected[:agreed]) | set(np.argsort(-logits, kind="stable")[: agreed + slack].tolist())
    )


@pytest.mark.parametrize("number", [2.0**-53, 0.5, 1.0 - 2.0**-53])
@pytest.mark.parametrize("params", [SamplingParams(1.0), SamplingParams(1.0, 50), SamplingParams(1.0, top_p=0.99)])
def test_forbidden_tokens_are_never_drawn_even_at_the_ends_of_the_noise(number: float, params: SamplingParams) -> None:
    logits = np.full(1000, -np.inf, dtype=np.float32)
    logits[[3, 500, 998]] = [0.0, 1.0, -80.0]
    assert draw(logits, params, number) in {3, 500, 998}
    assert draw(logits, params, 0.5) == 500


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_numbers_still_give_a_token(broken: float) -> None:
    logits = NORMAL.copy()
    logits[17:] = broken
    for params in (SamplingParams(1.0), SamplingParams(1.0, 5, 0.5), SamplingParams(1.0, min_p=0.1)):
        assert 0 <= draw(logits, params, 0.3) < len(logits)
    assert 0 <= draw(np.full(10, broken, dtype=np.float32), SamplingParams(1.0), 0.3) < 10


def test_temperature_reorders_nothing() -> None:
    logits = np.array([1.0, np.nextafter(np.float32(1.0), np.float32(2.0)), 0.0], dtype=np.float32)
    assert kept_ids(logits, SamplingParams(100.0, top_k=1)).tolist() == [1]


@pytest.mark.parametrize("params", [SamplingParams(0.8), SamplingParams(0.8, 50), SamplingParams(0.8, top_p=0.9)])
def test_a_draw_costs_a_fraction_of_sorting_the_row(params: SamplingParams) -> None:
    """CPU time, in turns, medians: what other work the machine does must not decide."""
    random = np.random.default_rng(4)
    logits = (random.standard_normal(49_152) * 2).astype(np.float32)
    logits[random.choice(49_152, 200, replace=False)] += random.exponential(4, 200).astype(np.float32) + 4
    costs: dict[str, list[float]] = {"draw": [], "sort": []}
    for number in random.random(31).tolist():
        began_s = time.thread_time()
        draw(logits, params, number)
        drawn_s = time.thread_time()
        np.argsort(logits)
        costs["draw"].append(drawn_s - began_s)
        costs["sort"].append(time.thread_time() - drawn_s)
    assert sorted(costs["draw"])[15] * 3 < sorted(costs["sort"])[15]
