"""Runs ranges of seeds, for the test and for `tests/sim/run.py`, so that several processes can share the work."""

from collections import Counter
from dataclasses import dataclass, field

from rollout_world import play
from sim_harness import Violation, simulate
from sim_plans import random_plan


@dataclass(frozen=True, slots=True)
class SeedRange:
    """`count` seeds from `first` on."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Tally:
    """What a range did; `failure` is the text of the first broken promise, which ends the range."""

    runs: int
    writes: int
    kills: int
    failure: str = ""


def run_seeds(seeds: SeedRange) -> Tally:
    """Simulate each seed of the range."""
    runs = writes = kills = 0
    for seed in range(seeds.first, seeds.first + seeds.count):
        try:
            result = simulate(random_plan(seed))
        except Violation as violation:
            return Tally(runs, writes, kills, str(violation))
        runs += 1
        writes += result.writes
        kills += result.kills
    return Tally(runs, writes, kills)


@dataclass(frozen=True, slots=True)
class RolloutTally:
    """How the rollouts of a range ended; `failure` is the first broken promise."""

    ends: Counter[str] = field(default_factory=Counter)
    failure: str = ""


def play_seeds(seeds: SeedRange) -> RolloutTally:
    """Play each rollout of the range."""
    ends: Counter[str] = Counter()
    for seed in range(seeds.first, seeds.first + seeds.count):
        try:
            ends[str(play(seed).run.phase)] += 1
        except AssertionError as broken:
            return RolloutTally(ends, str(broken))
    return RolloutTally(ends)
