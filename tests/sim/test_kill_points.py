"""The operator killed after every single write of create, change and delete: the same end state each time."""

import pytest

from sim_harness import Plan, simulate
from sim_objects import essence
from sim_plans import FIXED, change_step, create_step

SEED = 7


@pytest.mark.parametrize("name", sorted(FIXED))
def test_killed_between_any_two_writes_it_reaches_the_same_end(name: str) -> None:
    script = FIXED[name]
    undisturbed = simulate(Plan(SEED, script))
    expected = essence(undisturbed.objects)
    assert undisturbed.writes > 15
    for point in range(1, undisturbed.writes + 1):
        disturbed = simulate(Plan(SEED, script, kill_after=frozenset({point})))
        assert disturbed.kills == 1, f"write {point} was never reached"
        assert essence(disturbed.objects) == expected, f"killed after write {point}"


def test_killed_after_every_write_it_still_gets_there() -> None:
    """Each process lives for one write: progress needs no process to survive.

    The change comes when the first revision serves; before that it would just be replaced, without a run.
    """
    script = (create_step(), change_step(600.0))
    expected = essence(simulate(Plan(SEED, script)).objects)
    result = simulate(Plan(SEED, script, kill_after=frozenset(range(1, 200))))
    assert result.kills == result.writes >= 20
    assert essence(result.objects) == expected
