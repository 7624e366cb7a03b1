"""Any number of seeded simulations of the operator: `make sim N=10000 SEED=1`.

Prints the count, the seeds and the rate; stops at the first broken promise and prints its seed and list of events.
Run one seed again with `--n 1 --seed SEED`.
"""

import argparse
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from sim_harness import Violation, simulate
from sim_plans import random_plan


def main() -> int:
    """Run and report; the exit code is 0 when every promise held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1000, help="how many simulations")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--verbose", action="store_true", help="print the events of good runs too")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    start = time.monotonic()
    writes = kills = 0
    for seed in range(options.seed, options.seed + options.n):
        try:
            result = simulate(random_plan(seed))
        except Violation as violation:
            print(violation)
            print(f"failed: seed {seed}, after {seed - options.seed} good runs")
            return 1
        writes += result.writes
        kills += result.kills
        if options.verbose:
            print("\n".join(result.events))
    spent = time.monotonic() - start
    last = options.seed + options.n - 1
    print(f"{options.n} simulations, seeds {options.seed} to {last}: {writes} writes, {kills} kills, {spent:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
