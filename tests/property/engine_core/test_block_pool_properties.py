"""The page pool under random use: pages are conserved, none is given to two owners unless it is shared, and the one
that goes first is the one that a plain model of priorities, times and last uses names."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay.contract.blockhash import block_digest, root_digest
from forebay.contract.errors import Bug
from forebay.engine.blocks import NORMAL_PRIORITY, BlockPool
from forebay.engine.prefix import PrefixIndex
from scheduler_build import LIMITS, hybrid

PAGES = 12
PAGE_TOKENS = 2
GROUP = 1
"""The pool under test is the second of two, so that pages of another group with the same ids must not matter."""


class PoolMachine(RuleBasedStateMachine):
    """Owners take, share, hold and release; Counters and a list of last uses are the model."""

    def __init__(self) -> None:
        super().__init__()
        limits = replace(LIMITS, page_tokens=PAGE_TOKENS, min_copy_tokens=1, groups=hybrid(1000, PAGES, 2))
        self.index = PrefixIndex(b"", limits)
        self.pool = BlockPool(PAGES, self.index, GROUP)
        self.users: Counter[int] = Counter()
        self.holds: Counter[int] = Counter()
        self.content: dict[int, int] = {}
        self.retained: dict[int, tuple[int, float]] = {}
        self.idle_order: list[int] = []
        self.serial = 0
        self.now_s = 0.0

    @rule(count=st.integers(0, PAGES))
    def take(self, count: int) -> None:
        free = self.pool.free
        empty = free - self.pool.cached
        expected = self.eviction_order()[: max(0, count - empty)] if count <= free else []
        pages = self.pool.take(count)
        assert (pages is None) == (count > free)
        evicted = [page for page in pages or [] if page in self.content]
        assert evicted == expected
        for page in pages or []:
            assert self.users[page] == 0
            assert self.holds[page] == 0
            assert not self.index.knows(GROUP, page), "an evicted page is forgotten"
            self.content.pop(page, None)
            self.retained.pop(page, None)
            self.users[page] += 1
        self.note_idle()

    def eviction_order(self) -> list[int]:
        """Cached pages, the one to go first at the front."""
        return sorted(self.idle_order, key=lambda page: (self.priority(page), self.idle_order.index(page)))

    def priority(self, page: int) -> int:
        """The page's retention priority now."""
        priority, until_s = self.retained.get(page, (NORMAL_PRIORITY, 0.0))
        return priority if until_s > self.now_s else NORMAL_PRIORITY

    def note_idle(self) -> None:
        """Follow which known pages have nobody, in the order in which they got so."""
        idle = [page for page in self.content if not self.users[page] and not self.holds[page]]
        self.idle_order = [page for page in self.idle_order if page in idle]
        self.idle_order += [page for page in idle if page not in self.idle_order]

    @precondition(lambda self: self.used())
    @rule(data=st.data())
    def enter(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.used()))
        self.serial += 1
        if not self.index.knows(GROUP, page):
            self.content[page] = self.serial
            self.index.enter((self.serial, page), [], 0, (self.serial, 0), "")

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.content)))
        match = self.index.match([], (self.content[page], 0, 0), "")
        assert match.pages == ((self.content[page],), (page,)), "content stays findable until the page is evicted"
        self.pool.share(match.pages[GROUP])
        self.users[page] += 1
        self.note_idle()

    @precondition(lambda self: self.used() or self.content)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted({*self.used(), *self.content})))
        self.pool.hold([page])
        self.holds[page] += 1
        self.note_idle()

    @precondition(lambda self: self.used())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.used()))
        self.pool.release([page])
        self.users[page] -= 1
        self.note_idle()

    @precondition(lambda self: +self.holds)
    @rule(data=st.data())
    def unhold(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(+self.holds)))
        self.pool.unhold([page])
        self.holds[page] -= 1
        self.note_idle()

    @precondition(lambda self: self.used())
    @rule(data=st.data(), priority=st.sampled_from((0, 20, 35, 50, 100)), duration_s=st.sampled_from((1.0, 5.0, 60.0)))
    def retain(self, data: st.DataObject, priority: int, duration_s: float) -> None:
        page = data.draw(st.sampled_from(self.used()))
        until_s = self.now_s + duration_s
        self.pool.retain(page, priority, until_s, self.now_s)
        if page not in self.content:
            return
        had, had_until_s = self.retained.get(page, (-1, 0.0))
        lasts = had_until_s > self.now_s
        if not lasts or priority > had:
            self.retained[page] = (priority, until_s)
        elif priority == had:
            self.retained[page] = (priority, max(until_s, had_until_s))

    @rule(seconds=st.sampled_from((0.5, 1.0, 10.0)))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.pool.expire(self.now_s)

    @rule(page=st.integers(0, PAGES - 1))
    def a_double_free_is_a_bug(self, page: int) -> None:
        if self.users[page] == 0:
            with pytest.raises(Bug):
                self.pool.release([page])
        if self.holds[page] == 0:
            with pytest.raises(Bug):
                self.pool.unhold([page])

    @invariant()
    def pages_are_conserved(self) -> None:
        assert self.pool.used == len(+self.users)
        assert self.pool.held == len([page for page in +self.holds if self.users[page] == 0])
        assert self.pool.free + self.pool.used + self.pool.held == PAGES
        assert self.pool.cached == len(self.idle_order)

    @invariant()
    def bookkeeping_is_bounded(self) -> None:
        assert len(self.pool._eviction) <= 2 * PAGES + 100
        assert len(self.pool._expiry) <= 2 * PAGES + 100

    def used(self) -> list[int]:
        return sorted(+self.users)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


def test_digests_depend_on_every_part_and_never_run_into_each_other() -> None:
    roots = {root_digest(b"ab", "c"), root_digest(b"a", "bc"), root_digest(b"abc", ""), root_digest(b"", "abc")}
    assert len(roots) == 4
    parent = root_digest(b"", "")
    assert block_digest(parent, [1, 2]) != block_digest(parent, [2, 1])
    assert block_digest(block_digest(parent, [1]), [2]) != block_digest(block_digest(parent, [3]), [2])
    assert parent.hex() == "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"
