"""Draws follow the distribution of a plain reference, and depend on nothing but their own row."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.engine.request import SamplingParams
from forebay.engine.sampling.draw import draw
from forebay.engine.sampling.philox import uniform
from sampling_build import Doubles, Floats, Reference, choose, make_row

DRAWS = 100_000
LOGITS = np.array([2.0, 1.0, 0.0, -1.0, 0.5, 0.25, -3.0, 1.5, 0.9, -0.4], dtype=np.float32)
PROMPT, OUTPUT, STOP_IDS = [0, 3, 3], [7, 1, 7, 4], (6, 8)
QUANTILES = {1: 10.8, 2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5, 6: 22.5, 7: 24.3, 8: 26.1, 9: 27.9}
"""99.9 % quantiles of chi-square by degrees of freedom; seeds are fixed, so a test passes always or never."""

CASES: dict[str, Any] = {
    "temperature": {"temperature": 0.7},
    "top_k": {"temperature": 1.0, "top_k": 4},
    "top_p": {"temperature": 1.3, "top_p": 0.75},
    "min_p": {"temperature": 1.0, "min_p": 0.2},
    "all filters": {"temperature": 0.9, "top_k": 6, "top_p": 0.9, "min_p": 0.15},
    "repetition": {"temperature": 1.0, "repetition_penalty": 1.5},
    "presence": {"temperature": 1.0, "presence_penalty": 0.8},
    "frequency": {"temperature": 1.0, "frequency_penalty": 0.5},
    "bias": {"temperature": 1.0, "logit_bias": ((2, 1.5), (7, -2.0))},
    "min_tokens": {"temperature": 1.0, "min_tokens": 5},
    "everything": {
        "temperature": 1.2,
        "top_k": 8,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": ((5, 0.7),),
        "min_tokens": 9,
    },
}


def chi_square(drawn: "np.ndarray[Any, np.dtype[np.int64]]", probabilities: Doubles) -> tuple[float, int]:
    """The statistic and its degrees of freedom; impossible tokens must not have been drawn."""
    seen = np.bincount(drawn, minlength=len(probabilities))
    possible = probabilities > 0
    assert seen[~possible].sum() == 0
    expected = probabilities[possible] * len(drawn)
    return float(((seen[possible] - expected) ** 2 / expected).sum()), int(possible.sum()) - 1


@pytest.mark.parametrize(("case", "over"), [*((case, "positions") for case in CASES), ("temperature", "seeds")])
def test_draws_follow_the_distribution_of_the_reference(case: str, over: str) -> None:
    params = SamplingParams(**CASES[case])
    counting, fixed = np.arange(DRAWS, dtype=np.uint64), np.full(DRAWS, 17, dtype=np.uint64)
    numbers = uniform(fixed, counting) if over == "positions" else uniform(counting, fixed)
    row = make_row(params, len(LOGITS), PROMPT, OUTPUT, stop_ids=STOP_IDS)
    scratch = np.empty_like(LOGITS)
    drawn = np.array([row.choose(LOGITS, number, scratch)[0] for number in numbers.tolist()])
    statistic, freedom = chi_square(drawn, Reference(params, PROMPT, OUTPUT, STOP_IDS).probabilities(LOGITS))
    assert statistic < QUANTILES[freedom]


@pytest.mark.parametrize("case", ["temperature", "top_k", "top_p", "min_p", "all filters"])
def test_draws_from_a_large_vocabulary_follow_its_distribution(case: str) -> None:
    """Ten tokens far apart in a vocabulary of which the rest is impossible: blocks and bounds are all in use."""
    logits = np.full(49_152, -60.0, dtype=np.float32)
    places = np.array([3, 255, 256, 700, 9000, 20_000, 30_001, 40_000, 49_000, 49_151])
    logits[places] = LOGITS
    params = SamplingParams(**CASES[case])
    numbers = uniform(np.full(20_000, 5, dtype=np.uint64), np.arange(20_000, dtype=np.uint64))
    drawn = np.searchsorted(places, np.array([draw(logits, params, number) for number in numbers.tolist()]))
    statistic, freedom = chi_square(drawn, Reference(params, (), ()).probabilities(LOGITS))
    assert statistic < QUANTILES[freedom]


values = st.sampled_from([-4.0, -2.0, -1.0, 0.0, 0.5, 1.0, 3.0])
parameters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.integers(0, 26),
    top_p=st.sampled_from([0.05, 0.33, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.7, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -0.2]),
    logit_bias=st.lists(st.tuples(st.integers(0, 1), st.sampled_from([-1.5, 2.0])), max_size=2).map(tuple),
    min_tokens=st.integers(0, 6),
)


@settings(max_examples=300, deadline=None)
@given(
    logits=st.lists(values, min_size=4, max_size=24),
    params=parameters,
    history=st.tuples(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6)),
)
def test_exactly_the_tokens_of_the_reference_can_be_drawn(
    logits: list[float], params: SamplingParams, history: tuple[list[int], list[int]]
) -> None:
    prompt, output = history
    values = np.array(logits, dtype=np.float32)
    # Stop tokens end a sequence, so none is in the output.
    stop_ids = (len(values) - 1,)
    output = [token for token in output if token not in stop_ids]
    reference = Reference(params, prompt, output, stop_ids)
    row = make_row(params, len(values), prompt, output, stop_ids)
    adjusted = reference.adjusted(values)
    if params.temperature == 0:
        chosen = choose(row, values)
        # fp32 and fp64 may differ on which of two equal sums is larger.
        assert adjusted[chosen] >= adjusted.max() - 1e-5
        return
    numbers = uniform(np.full(60, 3, dtype=np.uint64), np.arange(60, dtype=np.uint64))
    scratch = np.empty_like(values)
    drawn = {row.choose(values, number, scratch)[0] for number in numbers.tolist()}
    allowed = set(reference.kept(adjusted))
    # Of tokens whose adjusted logits are equal up to rounding, either may be the one that is kept.
    assert all(any(abs(adjusted[token] - adjusted[other]) < 1e-5 for other in allowed) for token in drawn)
    assert len(drawn) <= len(allowed)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.sampled_from([300, 2000, 5003]))
def test_a_row_draws_the_same_token_wherever_it_lies(seed: int, size: int) -> None:
    random = np.random.default_rng(seed)
    rows: Floats = (random.standard_normal((9, size)) * 3).astype(np.float32)
    params = [
        SamplingParams(float(random.choice([0.7, 1.0])), int(random.choice([0, 20])), float(random.choice([0.9, 1.0])))
        for _ in range(9)
    ]
    numbers = random.random(9)
    together = [draw(row, one, float(number)) for row, one, number in zip(rows, params, numbers, strict=True)]
    for place in range(9):
        # Another alignment, another neighbourhood in memory.
        buffer = np.empty(size + 16, dtype=np.float32)
        shift = int(random.integers(16))
        moved = buffer[shift : shift + size]
        moved[:] = rows[place]
        assert draw(moved, params[place], float(numbers[place])) == together[place]


@settings(max_examples=100, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 30), max_size=20),
    output=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    params=parameters,
    cut=st.integers(0, 40),
)
def test_a_row_rebuilt_from_its_tokens_equals_the_one_that_generated_them(
    prompt: list[int], output: list[int], params: SamplingParams, cut: int
) -> None:
    logits = np.random.default_rng(len(output)).standard_normal(31).astype(np.float32)
    grown = make_row(params, 31, prompt, output[:cut], stop_ids=(30,))
    for token in output[cut:]:
        choose(grown, logits)
        grown.legal_prefix([token, 4, 5])
        grown.accept(token)
    rebuilt = make_row(params, 31, prompt, output, stop_ids=(30,))
    for number in (0.01, 0.4, 0.8, 0.99):
        assert choose(grown, logits, number) == choose(rebuilt, logits, number)
