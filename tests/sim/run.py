"""Any number of seeded simulations of the operator: `make sim N=10000 SEED=1`.

Prints the count, the seeds and the rate; stops at the first broken promise and prints its seed and list of events.
Run one seed again with `--n 1 --seed SEED`.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from sim_runs import SeedRange, Tally, run_seeds

CHUNK = 50


def main() -> int:
    """Run and report; the exit code is 0 when every promise held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1000, help="how many simulations")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    start = time.monotonic()
    runs = writes = kills = 0
    for tally in _tallies(options.seed, options.n):
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


def _tallies(first: int, count: int) -> Iterator[Tally]:
    ranges = [SeedRange(at, min(CHUNK, first + count - at)) for at in range(first, first + count, CHUNK)]
    if len(ranges) == 1:
        yield run_seeds(ranges[0])
        return
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        yield from pool.map(run_seeds, ranges)


if __name__ == "__main__":
    sys.exit(main())
