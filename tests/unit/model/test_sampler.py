"""Filters, distribution and batch independence of the sampler."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.engine.sampling.sampler import SamplingRows, kept_counts, sample


def rows(
    count: int, *, temperatures: Any = 1.0, top_k: Any = 0, top_p: Any = 1.0, seeds: Any = 1, positions: Any = 0
) -> SamplingRows:
    """Parameters of `count` rows; a scalar column is repeated."""

    def column(value: Any, dtype: type) -> Any:
        return np.broadcast_to(np.asarray(value, dtype=dtype), (count,)).copy()

    return SamplingRows(
        temperatures=column(temperatures, np.float64),
        top_k=column(top_k, np.int64),
        top_p=column(top_p, np.float64),
        seeds=column(seeds, np.uint64),
        positions=column(positions, np.uint64),
    )


def chi_square(drawn: torch.Tensor, probabilities: torch.Tensor) -> float:
    expected = probabilities.double() * len(drawn)
    seen = torch.bincount(drawn, minlength=len(probabilities)).double()
    possible = expected > 0
    assert seen[~possible].sum() == 0
    return float(((seen - expected)[possible] ** 2 / expected[possible]).sum())


def reference_filter(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[int]:
    """Ids that stay, by the definition: sort by value descending then id, cut at k, cut at the mass p."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = order[: top_k or len(order)]
    weights = np.exp(np.array([logits[token] / temperature for token in order]) - logits[order[0]] / temperature)
    mass = np.cumsum(weights / weights.sum())
    return order[: min(len(order), int(np.count_nonzero(mass < top_p)) + 1)]


def test_draws_follow_the_softmax_at_a_temperature() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, 0.5, -3.0, 1.5])
    count, temperature = 100_000, 0.8
    drawn = sample(logits.repeat(count, 1), rows(count, temperatures=temperature, positions=np.arange(count)))
    # 7 degrees of freedom: 24.3 is the 99.9 % quantile.
    assert chi_square(drawn, (logits / temperature).softmax(0)) < 24.3


def test_draws_over_seeds_follow_the_softmax_too() -> None:
    logits = torch.tensor([0.3, 0.1, -0.2, 0.0, 0.7])
    count = 100_000
    drawn = sample(logits.repeat(count, 1), rows(count, seeds=np.arange(count), positions=17))
    assert chi_square(drawn, logits.softmax(0)) < 18.5


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.7), (4, 0.8)])
def test_filtered_draws_follow_the_renormalised_softmax(top_k: int, top_p: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, 0.25, -3.0, 1.5])
    count = 100_000
    drawn = sample(logits.repeat(count, 1), rows(count, top_k=top_k, top_p=top_p, positions=np.arange(count)))
    kept = reference_filter(logits.tolist(), 1.0, top_k, top_p)
    probabilities = torch.zeros_like(logits)
    probabilities[kept] = logits[kept].softmax(0)
    assert len(kept) < len(logits)
    assert chi_square(drawn, probabilities) < 24.3


@settings(max_examples=150, deadline=None)
@given(
    logits=st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]), min_size=2, max_size=24),
    top_k=st.integers(0, 26),
    top_p=st.sampled_from([0.05, 0.33, 0.9, 0.999, 1.0]),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
)
def test_exactly_the_right_tokens_can_be_drawn(
    logits: list[float], top_k: int, top_p: float, temperature: float
) -> None:
    count = 400
    drawn = sample(
        torch.tensor(logits).repeat(count, 1),
        rows(count, temperatures=temperature, top_k=top_k, top_p=top_p, positions=np.arange(count)),
    )
    kept = set(reference_filter(logits, temperature, top_k, top_p))
    assert set(drawn.tolist()) <= kept


def test_ties_at_the_top_k_border_keep_the_lowest_ids() -> None:
    logits = torch.tensor([0.0, 1.0, 1.0, 2.0, 1.0, 1.0]).repeat(2000, 1)
    drawn = sample(logits, rows(2000, top_k=3, positions=np.arange(2000)))
    assert set(drawn.tolist()) == {1, 2, 3}


def test_greedy_takes_the_lowest_id_of_a_tie_in_every_format() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.zeros(3, 50_000, dtype=dtype)
        logits[0, [7, 40_000]] = 5.0
        logits[1, [49_999, 123]] = 5.0
        assert sample(logits, rows(3, temperatures=0.0)).tolist() == [7, 123, 0]


def test_a_tiny_top_p_is_greedy() -> None:
    logits = torch.randn(64, 1000, generator=torch.Generator().manual_seed(1))
    drawn = sample(logits.clone(), rows(64, top_p=1e-9, positions=np.arange(64)))
    assert torch.equal(drawn, logits.argmax(1))


@pytest.mark.parametrize("temperature", [1e-5, 1e-37, 1e-45, 1e-300])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 0.5)])
def test_a_tiny_temperature_is_greedy(temperature: float, top_k: int, top_p: float) -> None:
    logits = torch.randn(64, 1000, generator=torch.Generator().manual_seed(1)) * 5
    drawn = sample(
        logits.clone(), rows(64, temperatures=temperature, top_k=top_k, top_p=top_p, positions=np.arange(64))
    )
    assert torch.equal(drawn, logits.argmax(1))


def test_a_large_vocabulary_is_filtered_as_a_small_one() -> None:
    logits = torch.randn(4, 5000, generator=torch.Generator().manual_seed(2)) * 0.1
    top_k, top_p = np.array([0, 3000, 700, 4]), np.array([0.9, 0.95, 1.0, 0.5])
    expected = [
        len(reference_filter(logits[row].double().tolist(), 1.0, int(top_k[row]), float(top_p[row])))
        for row in range(4)
    ]
    assert kept_counts(logits, top_k, top_p).tolist() == pytest.approx(expected, abs=1)
    assert expected[0] > 512


def test_a_row_draws_the_same_token_in_any_batch() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(40, 2000, generator=generator)
    random = np.random.default_rng(9)
    columns = {
        "temperatures": random.choice([0.0, 0.7, 1.0, 1.3], 40),
        "top_k": random.choice([0, 1, 5, 50], 40),
        "top_p": random.choice([0.3, 0.9, 1.0], 40),
        "seeds": random.integers(0, 2**63, 40),
        "positions": random.integers(0, 8000, 40),
    }
    together = sample(logits.clone(), rows(40, **columns))
    order = random.permutation(40)
    shuffled = sample(logits[order].clone(), rows(40, **{name: column[order] for name, column in columns.items()}))
    assert torch.equal(together[torch.from_numpy(order)], shuffled)
    for row in range(40):
        alone = sample(
            logits[row : row + 1].clone(), rows(1, **{name: column[row] for name, column in columns.items()})
        )
        assert alone.item() == together[row].item()
