"""The page pool under random use: pages are conserved, and none is given to two owners unless it is shared."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay.contract.blockhash import block_digest, root_digest
from forebay.contract.errors import Bug
from forebay.engine.blocks import BlockPool
from forebay.engine.prefix import PrefixIndex

PAGES = 12
PAGE_TOKENS = 2


class PoolMachine(RuleBasedStateMachine):
    """Owners take, share, hold and release; a Counter is the model."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(b"", PAGE_TOKENS, 1, enabled=True)
        self.pool = BlockPool(PAGES, self.index)
        self.users: Counter[int] = Counter()
        self.holds: Counter[int] = Counter()
        self.content: dict[int, int] = {}
        self.serial = 0

    @rule(count=st.integers(0, PAGES))
    def take(self, count: int) -> None:
        free = self.pool.free
        pages = self.pool.take(count)
        assert (pages is None) == (count > free)
        for page in pages or []:
            assert self.users[page] == 0
            assert self.holds[page] == 0
            assert page not in self.index, "an evicted page is forgotten"
            self.content.pop(page, None)
            self.users[page] += 1

    @precondition(lambda self: self.used())
    @rule(data=st.data())
    def enter(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.used()))
        self.serial += 1
        if page not in self.index:
            self.content[page] = self.serial
            self.index.enter(page, [], 0, (self.serial, 0), "")

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.content)))
        match = self.index.match([], (self.content[page], 0, 0), "")
        assert match.pages == (page,), "content stays findable until the page is evicted"
        self.pool.share(match.pages)
        self.users[page] += 1

    @precondition(lambda self: self.used() or self.content)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted({*self.used(), *self.content})))
        self.pool.hold([page])
        self.holds[page] += 1

    @precondition(lambda self: self.used())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.used()))
        self.pool.release([page])
        self.users[page] -= 1

    @precondition(lambda self: +self.holds)
    @rule(data=st.data())
    def unhold(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(+self.holds)))
        self.pool.unhold([page])
        self.holds[page] -= 1

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

    def used(self) -> list[int]:
        return sorted(+self.users)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_digests_depend_on_every_part_and_never_run_into_each_other() -> None:
    roots = {root_digest(b"ab", "c"), root_digest(b"a", "bc"), root_digest(b"abc", ""), root_digest(b"", "abc")}
    assert len(roots) == 4
    parent = root_digest(b"", "")
    assert block_digest(parent, [1, 2]) != block_digest(parent, [2, 1])
    assert block_digest(block_digest(parent, [1]), [2]) != block_digest(block_digest(parent, [3]), [2])
    assert parent.hex() == "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"
