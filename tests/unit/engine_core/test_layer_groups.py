"""Layer groups with windows: pages fall out as a row advances, and a prefix needs what the next token sees."""

from dataclasses import replace

import pytest

from forebay.contract.errors import InvalidRequest, InvalidSpec
from forebay.engine.limits import AdmissionPolicy, PoolGroup, SchedulerLimits, StateKind, first_visible_block
from forebay.engine.pools import PoolLoad
from forebay.engine.prefix import PrefixIndex
from scheduler_build import LIMITS, VOCABULARY, Drive, hybrid, request
from script_runner import sequential_tokens

WINDOWED = replace(LIMITS, groups=hybrid(64, 24, 8), max_prompt_tokens=120, max_sequence_tokens=256)


def pools(drive: Drive) -> dict[str, PoolLoad]:
    """Pages by group."""
    return {pool.name: pool for pool in drive.scheduler.load().pools}


@pytest.mark.parametrize(
    ("position", "window", "block"), [(0, 8, 0), (7, 8, 0), (8, 8, 0), (11, 8, 1), (14, 8, 1), (15, 8, 2), (99, 0, 0)]
)
def test_a_token_sees_itself_and_the_window_minus_one_before(position: int, window: int, block: int) -> None:
    assert first_visible_block(position, window, page_tokens=4) == block


def test_a_long_row_keeps_all_pages_of_the_full_group_and_a_few_of_the_window() -> None:
    drive = Drive(WINDOWED)
    drive.add(request(1, range(30), max_new_tokens=60))
    kept = []
    for _ in range(40):
        drive.step()
        kept.append(pools(drive)["sliding"].used)
    assert pools(drive)["full"].used == 18
    assert max(kept) <= 8, "the first chunk needs a page for each of its tokens"
    assert max(kept[1:]) == 3
    drive.run()
    assert drive.tokens[1] == sequential_tokens(request(1, range(30), max_new_tokens=60), VOCABULARY)
    drive.assert_at_rest()


def test_a_page_that_a_step_in_flight_may_read_falls_only_at_its_commit() -> None:
    drive = Drive(WINDOWED)
    drive.add(request(1, range(12), max_new_tokens=20))
    drive.step()
    assert pools(drive)["sliding"].used == 2, "position 12 sees from 5 on"
    for _ in range(2):
        drive.step()
    drive.launch()
    drive.launch()
    assert pools(drive)["sliding"].used == 3, "the step at position 14 sees from 7 on, the one at 15 only from 8"
    drive.commit()
    assert pools(drive)["sliding"].used == 2
    drive.run()
    drive.assert_at_rest()


def test_a_prompt_longer_than_the_window_pool_runs_in_chunks_that_fit() -> None:
    drive = Drive(replace(WINDOWED, groups=hybrid(64, 5, 8)))
    new = request(1, range(100), max_new_tokens=20)
    drive.add(new)
    drive.run(depth=2)
    assert max(plan.counts[0] for plan in drive.runner.plans) <= 20
    assert drive.scheduler.load().preemptions == 0
    assert drive.tokens[1] == sequential_tokens(new, VOCABULARY)


def test_a_hit_needs_the_whole_prefix_in_the_full_group_and_the_last_window_in_the_other() -> None:
    drive = Drive(replace(WINDOWED, min_copy_tokens=100))
    drive.add(request(1, range(40), max_new_tokens=1))
    drive.run()
    first = drive.runner.plans[0].page_tables
    drive.runner.plans.clear()
    drive.add(request(2, range(41), max_new_tokens=1))
    drive.run()
    plan = drive.runner.plans[0]
    assert plan.starts == (40,)
    assert plan.page_tables[0][0][:8] == first[0][0], "the whole prefix"
    assert drive.ended[2].cached_tokens == 40
    assert drive.tokens[2] == sequential_tokens(request(2, range(41), max_new_tokens=1), VOCABULARY)


def test_a_prefix_whose_window_was_evicted_is_cut_to_where_a_window_is_whole() -> None:
    index = PrefixIndex(b"", replace(WINDOWED, min_copy_tokens=100))
    digests: list[bytes] = []
    for block in range(10):
        index.enter((block, 20 + block), digests, block, range(40), "")
    assert index.match([], range(41), "").blocks == 10
    index.drop(1, 28)
    match = index.match([], range(41), "")
    assert match.blocks == 8, "block 8 has no page in the window, so the prefix must end before it"
    assert match.firsts == (0, 6)
    assert match.pages == (tuple(range(8)), (26, 27))
    index.drop(0, 5)
    assert index.match([], range(41), "").blocks == 5, "every block counts in the full group"
    index.drop(1, 24)
    assert index.match([], range(41), "").blocks == 4


def test_a_block_is_forgotten_when_its_last_page_goes() -> None:
    index = PrefixIndex(b"", WINDOWED)
    index.enter((3, 4), [], 0, range(4), "")
    index.drop(1, 4)
    assert len(index) == 1
    index.drop(0, 3)
    assert len(index) == 0
    assert index.match([], range(9), "").blocks == 0


def test_a_part_of_a_page_is_copied_in_every_group() -> None:
    drive = Drive(replace(WINDOWED, min_copy_tokens=2))
    drive.add(request(1, range(16)))
    drive.run()
    new = request(2, [*range(7), 40, 41, 42])
    drive.add(new)
    plan = drive.launch()
    assert plan is not None
    assert [(group, tokens) for group, _, _, tokens in plan.copies] == [(0, 3), (1, 3)]
    assert [target for _, _, target, _ in plan.copies] == [plan.page_tables[0][0][1], plan.page_tables[1][0][1]]
    assert [pool.held for pool in drive.scheduler.load().pools] == [1, 1]
    drive.commit()
    drive.run()
    assert drive.tokens[2] == sequential_tokens(new, VOCABULARY)
    drive.assert_at_rest()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("policy", list(AdmissionPolicy), ids=lambda policy: policy.value)
def test_many_rows_share_a_small_window_pool(depth: int, policy: AdmissionPolicy) -> None:
    drive = Drive(replace(WINDOWED, groups=hybrid(200, 9, 8), admission=policy, max_running=6))
    added = [request(n, range(n, n + 30 + n), max_new_tokens=30, priority=n % 2) for n in range(1, 9)]
    for new in added:
        drive.add(new)
    drive.run(depth)
    for new in added:
        assert drive.tokens[new.request_id] == sequential_tokens(new, VOCABULARY)
    if policy is AdmissionPolicy.GUARANTEED_NO_EVICT:
        assert drive.scheduler.load().preemptions == 0
    drive.assert_at_rest()


def test_the_longest_sequence_is_bound_by_full_groups_and_windows_that_are_too_small() -> None:
    windows_hold = replace(LIMITS, groups=hybrid(20, 4, 8), max_sequence_tokens=1000, max_prompt_tokens=1000)
    assert windows_hold.capacity_tokens == 80
    too_small = replace(windows_hold, groups=hybrid(20, 2, 8))
    assert too_small.capacity_tokens == 8
    with pytest.raises(InvalidRequest):
        too_small.check(9, 1)
    only_windows = replace(windows_hold, groups=(PoolGroup("sliding", 4, 8),))
    only_windows.check(900, 100)


@pytest.mark.parametrize("state", [StateKind.RECURRENT, StateKind.COMPRESSED_KV], ids=lambda state: state.value)
def test_state_that_is_not_kept_by_token_is_refused_by_name(state: StateKind) -> None:
    with pytest.raises(InvalidSpec, match=state.value):
        PoolGroup("recurrent", 8, state=state)


@pytest.mark.parametrize(
    "state", [StateKind.KV, StateKind.MLA_LATENT, StateKind.INDEX_KEYS], ids=lambda kind: kind.value
)
def test_state_by_token_gets_pages(state: StateKind) -> None:
    drive = Drive(replace(LIMITS, groups=(PoolGroup("any", 16, state=state),)))
    drive.add(request(1))
    drive.run()
    assert drive.tokens[1] == sequential_tokens(request(1), VOCABULARY)


@pytest.mark.parametrize(
    "groups",
    [(), (PoolGroup("full", 4), PoolGroup("full", 4))],
    ids=["none", "twice"],
)
def test_groups_must_be_there_and_have_names_of_their_own(groups: tuple[PoolGroup, ...]) -> None:
    values = {name: getattr(LIMITS, name) for name in LIMITS.__slots__} | {"groups": groups}
    with pytest.raises(InvalidSpec, match="layer group"):
        SchedulerLimits(**values)
