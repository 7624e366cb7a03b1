"""A thousand seeded lives of the operator; `make sim N=...` runs any number."""

import logging
from concurrent.futures import ProcessPoolExecutor

import pytest

from sim_plans import random_plan
from sim_runs import SeedRange, run_seeds

RUNS = 1000
FIRST_SEED = 1
CHUNK = 25


@pytest.mark.timeout(600)
def test_a_thousand_random_lives_keep_every_promise() -> None:
    logging.disable(logging.ERROR)
    ranges = [SeedRange(first, CHUNK) for first in range(FIRST_SEED, FIRST_SEED + RUNS, CHUNK)]
    with ProcessPoolExecutor(max_workers=2) as pool:
        tallies = list(pool.map(run_seeds, ranges))
    assert [tally.failure for tally in tallies if tally.failure] == []
    assert sum(tally.runs for tally in tallies) == RUNS
    # The lives are eventful: a generator that makes easy plans would prove nothing.
    assert sum(tally.kills for tally in tallies) > RUNS
    assert sum(tally.writes for tally in tallies) > 20 * RUNS


def test_a_seed_always_makes_the_same_life() -> None:
    first, second = run_seeds(SeedRange(3, 5)), run_seeds(SeedRange(3, 5))
    assert first == second
    assert random_plan(3).network == random_plan(3).network
