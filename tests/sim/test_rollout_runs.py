"""Random rollouts: late and dying pods, slow routers, clocks that jump, operators that die, people who think again.

`make sim` plays many more of them. A seed that once broke a promise stays here.
"""

import pytest

from rollout_world import play
from sim_runs import SeedRange, play_seeds

ONCE_BROKEN = (3, 49, 51, 68, 285, 377, 2109)


def test_two_thousand_rollouts_end_and_keep_their_floors() -> None:
    tally = play_seeds(SeedRange(1, 2000))
    assert tally.failure == ""
    assert set(tally.ends) == {"Completed", "RolledBack", "Superseded"}


@pytest.mark.parametrize("seed", ONCE_BROKEN)
def test_a_seed_that_once_broke_a_promise_keeps_it(seed: int) -> None:
    assert play(seed).run.finished
