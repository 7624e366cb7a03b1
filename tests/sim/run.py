"""Any number of seeded simulations: `make sim N=10000 SEED=1`.

First ten times as many single rollout runs (`--only rollouts`), then whole lives of the operator (`--only operator`).
Prints the count, the seeds and the rate; stops at the first broken promise and prints its seed and list of events.
Run one seed again with `--n 1 --seed SEED`.
"""

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from sim_runs import SeedRange, play_seeds, run_seeds

CHUNK = 50
ROLLOUT_CHUNK = 500
ROLLOUTS_PER_LIFE = 10
T = TypeVar("T")


def main() -> int:
    """Run and report; the exit code is 0 when every promise held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1000, help="how many simulations")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--only", choices=("operator", "rollouts"), help="one kind of simulation")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    if options.only != "operator" and not _rollouts(options.seed, options.n * ROLLOUTS_PER_LIFE):
        return 1
    return 0 if options.only == "rollouts" else _lives(options)


def _rollouts(first: int, count: int) -> bool:
    start = time.monotonic()
    ends: Counter[str] = Counter()
    for tally in _spread(play_seeds, first, count, ROLLOUT_CHUNK):
        ends.update(tally.ends)
        if tally.failure:
            print(tally.failure)
            return False
    shown = ", ".join(f"{name} {number}" for name, number in sorted(ends.items()))
    print(f"{count} rollouts, seeds {first} to {first + count - 1}: {shown}, {time.monotonic() - start:.1f} s")
    return True


def _lives(options: argparse.Namespace) -> int:
    start = time.monotonic()
    runs = writes = kills = 0
    for tally in _spread(run_seeds, options.seed, options.n, CHUNK):
        runs += tally.runs
        writes += tally.writes
        kills += tally.kills
        if tally.failure:
            print(tally.failure)
            print(f"failed after {runs} good simulations")
            return 1
        if options.n > CHUNK:
            print(f"{runs} of {options.n} in {time.monotonic() - start:.0f} s", flush=True)
    spent = time.monotonic() - start
    last = options.seed + options.n - 1
    print(f"{runs} simulations, seeds {options.seed} to {last}: {writes} writes, {kills} kills, {spent:.1f} s")
    return 0


def _spread(run: Callable[[SeedRange], T], first: int, count: int, chunk: int) -> Iterator[T]:
    ranges = [SeedRange(at, min(chunk, first + count - at)) for at in range(first, first + count, chunk)]
    if len(ranges) == 1:
        yield run(ranges[0])
        return
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        yield from pool.map(run, ranges)


if __name__ == "__main__":
    sys.exit(main())
