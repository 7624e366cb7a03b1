"""The scheduler under random adds, aborts, deadlines, plans and commits with two steps in flight.

The script runner computes tokens from the KV pages a plan names, so equality with a sequential run shows at once that
no page was lost, shared wrongly or reused too early: with one layer group or with a window beside it, with drafts that
are right or wrong, with rows that embed or whose grammar breaks.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.contract.errors import Overloaded
from forebay.engine.limits import AdmissionPolicy, PoolGroup, SchedulerLimits, first_visible_block
from forebay.engine.plan import TOKEN_ON_DEVICE, StepPlan
from forebay.engine.request import (
    DraftKind,
    Ended,
    FinishReason,
    NewRequest,
    RequestKind,
    Retention,
    SamplingParams,
    Speculation,
)
from scheduler_build import LIMITS, VOCABULARY, Drive, full, request
from script_runner import BROKEN_GRAMMAR, logprobs_of, prompt_hash, sequential_tokens

PREFIXES = ((), tuple(range(9)), tuple(range(17)), (*range(9), 40, 41, 42))
PAGES = st.sampled_from((12, 12, 13, 15, 20, 40))
SLIDING = st.builds(
    lambda window, extra: PoolGroup("sliding", (window + 3) // LIMITS.page_tokens + 1 + extra, window),
    st.integers(2, 14),
    st.sampled_from((0, 1, 2, 4, 14)),
)
GROUPS = st.one_of(
    st.builds(full, PAGES),
    st.builds(lambda pages, sliding: (*full(pages), sliding), PAGES, SLIDING),
    st.builds(lambda sliding: (sliding,), SLIDING),
)
"""Pools in which every request of `new_requests` fits alone; a window needs window + 2 positions at any alignment."""
LIMIT_CHOICES = st.builds(
    lambda groups, running, budget, policy, reuse, copy, in_flight: replace(
        LIMITS,
        groups=groups,
        max_running=running,
        max_batch_tokens=running + budget,
        admission=policy,
        prefix_reuse=reuse,
        min_copy_tokens=copy,
        max_in_flight=in_flight,
    ),
    GROUPS,
    st.integers(1, 6),
    st.integers(0, 20),
    st.sampled_from(AdmissionPolicy),
    st.booleans(),
    st.integers(1, 4),
    st.sampled_from((1, 2)),
)
PROMPTS = st.builds(
    lambda prefix, tail: (*prefix, *tail),
    st.sampled_from(PREFIXES),
    st.lists(st.integers(0, 3), min_size=1, max_size=12).map(tuple),
)
SPECULATION = st.one_of(st.none(), st.builds(Speculation, st.sampled_from(DraftKind), st.integers(1, 5)))
RETENTION = st.lists(
    st.builds(Retention, st.integers(0, 10), st.integers(5, 30), st.integers(0, 100), st.sampled_from((0.5, 1e3))),
    max_size=2,
).map(tuple)


@st.composite
def new_requests(draw: st.DrawFn, request_id: int, now_s: float) -> NewRequest:
    """A request that fits every pool of `LIMIT_CHOICES`."""
    return request(
        request_id,
        draw(PROMPTS),
        max_new_tokens=draw(st.sampled_from((1, 2, 3, 5, 8, 13, 16, 16, 16))),
        sampling=SamplingParams(
            seed=draw(st.integers(0, 3)), top_logprobs=draw(st.sampled_from((None, None, None, 0, 1)))
        ),
        stop_token_ids=draw(st.frozensets(st.integers(0, VOCABULARY - 1), max_size=2)),
        ignore_eos=draw(st.booleans()),
        tenant=draw(st.sampled_from("ab")),
        priority=draw(st.integers(0, 1)),
        deadline_s=now_s + draw(st.sampled_from((0.5, 3.0, *[1e6] * 8))),
        speculation=draw(SPECULATION),
        retention=draw(RETENTION),
        grammar=draw(st.sampled_from((*[""] * 9, "fine", BROKEN_GRAMMAR))),
        kind=draw(st.sampled_from((*[RequestKind.GENERATE] * 9, RequestKind.EMBED))),
    )


def check_plan(drive: Drive, plan: StepPlan) -> None:
    """What must hold of every plan on its own."""
    rows = len(plan.slots)
    limits = drive.limits
    arrays = (plan.epochs, plan.starts, plan.counts, plan.samples, plan.fresh, plan.draft_limits, *plan.page_tables)
    assert {len(array) for array in arrays} == {rows}
    assert 0 < sum(plan.counts) == len(plan.tokens)
    assert sum(plan.counts) + sum(plan.draft_limits) <= limits.max_batch_tokens
    assert len(set(plan.slots)) == rows <= limits.max_running
    assert all(plan.counts[row] == 1 for row in range(plan.tokens.count(TOKEN_ON_DEVICE)))
    check_drafts(drive, plan)
    for number in range(len(limits.groups)):
        check_tables(drive, plan, number)


def check_drafts(drive: Drive, plan: StepPlan) -> None:
    """Rows that may draft are decodes of a step that runs alone, and never go beyond their last token."""
    drafting = [row for row, limit in enumerate(plan.draft_limits) if limit]
    assert not drafting or len(drive.launched) == 1, "a step with drafts runs alone"
    assert all(plan.counts[row] == 1 and plan.samples[row] for row in drafting)
    # The last token of a request is never computed, so no position from there on needs a place.
    most = [drive.scheduler._rows.max_length[slot] - 2 for slot in plan.slots]
    assert all(plan.starts[row] + plan.draft_limits[row] <= most[row] for row in drafting)


def visible(limits: SchedulerLimits, plan: StepPlan, group: int, row: int) -> tuple[int, ...]:
    """Pages that a row of a plan reads or writes in a group."""
    start, end = plan.starts[row], plan.starts[row] + plan.counts[row] + plan.draft_limits[row]
    first = first_visible_block(start, limits.groups[group].window_tokens, limits.page_tokens)
    return plan.page_tables[group][row][first : limits.pages_for(end)]


def touched(limits: SchedulerLimits, plan: StepPlan, group: int) -> set[int]:
    """Pages that a plan reads or writes in a group."""
    pages = {page for row in range(len(plan.slots)) for page in visible(limits, plan, group, row)}
    return pages | {source for number, source, _, _ in plan.copies if number == group}


def check_tables(drive: Drive, plan: StepPlan, group: int) -> None:
    """Pages of a plan in one group: enough, and written by one row alone."""
    limits, pool = drive.limits, drive.scheduler._pools.pools[group]
    written: list[int] = []
    for row, start in enumerate(plan.starts):
        end = start + plan.counts[row] + plan.draft_limits[row]
        assert len(plan.page_tables[group][row]) >= limits.pages_for(end)
        seen = visible(limits, plan, group, row)
        assert len(set(seen)) == len(seen)
        written += plan.page_tables[group][row][start // limits.page_tokens : limits.pages_for(end)]
    assert len(set(written)) == len(written), "two rows write one page"
    assert all(pool._users[page] == 1 for page in written), "a page is written while it is shared"


def check_rest(drive: Drive) -> None:
    """Between steps rows have pages for what they know, from where their window begins, and no others."""
    rows, limits = drive.scheduler._rows, drive.limits
    if drive.scheduler.in_flight:
        return
    for slot, (number, group) in itertools.product(rows.order, enumerate(limits.groups)):
        assert len(rows.tables[number][slot]) <= limits.pages_for(rows.length[slot])
        first = first_visible_block(rows.computed[slot], group.window_tokens, limits.page_tokens)
        assert rows.firsts[number][slot] == first


def check_promises(drive: Drive) -> None:
    """Where nothing may be evicted, what rows have or were promised of a window group fits it."""
    rows, limits = drive.scheduler._rows, drive.limits
    if limits.admission is not AdmissionPolicy.GUARANTEED_NO_EVICT:
        return
    assert drive.scheduler.load().preemptions == 0
    for number, group in enumerate(limits.groups):
        promised = {slot: limits.resident_pages(group, rows.max_length[slot] - 1) for slot in rows.order}
        taken = sum(max(rows.page_count(number, slot), pages) for slot, pages in promised.items())
        assert not group.window_tokens or taken <= group.pages


class SchedulerMachine(RuleBasedStateMachine):
    """Random interleavings; `Drive` already fails on a second end or a token after the end."""

    drive: Drive

    def __init__(self) -> None:
        super().__init__()
        self.added: dict[int, NewRequest] = {}
        self.refused = 0

    @initialize(
        limits=LIMIT_CHOICES, acceptance=st.sampled_from((0.0, 0.5, 0.9, 1.0)), eagerness=st.sampled_from((0.5, 1.0))
    )
    def start(self, limits: SchedulerLimits, acceptance: float, eagerness: float) -> None:
        self.drive = Drive(limits, acceptance=acceptance, eagerness=eagerness)

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        new = data.draw(new_requests(len(self.added) + self.refused + 1, self.drive.now_s))
        try:
            self.drive.add(new)
            self.added[new.request_id] = new
        except Overloaded:
            assert self.drive.scheduler.load().waiting >= self.drive.limits.max_waiting
            self.refused += 1

    @rule(offset=st.integers(-6, 2))
    def abort(self, offset: int) -> None:
        request_id = max(1, len(self.added) + self.refused + offset)
        live = request_id in self.added and request_id not in self.drive.ended
        assert len(self.drive.abort(request_id)) == int(live)

    @rule()
    def launch(self) -> None:
        plan = self.drive.launch()
        if plan is None:
            assert self.drive.launched or self.drive.scheduler.idle, "work waits and nothing is planned"
        else:
            check_plan(self.drive, plan)

    @precondition(lambda self: self.drive.launched)
    @rule()
    def commit(self) -> None:
        self.drive.commit()

    @rule(turns=st.integers(1, 12), depth=st.sampled_from((1, 2)))
    def go_on(self, turns: int, depth: int) -> None:
        for _ in range(turns):
            while len(self.drive.launched) < depth and (plan := self.drive.launch()) is not None:
                check_plan(self.drive, plan)
            if self.drive.launched:
                self.drive.commit()

    @rule(seconds=st.sampled_from((0.1, 1.0)))
    def wait(self, seconds: float) -> None:
        self.drive.expire(self.drive.now_s + seconds)

    @invariant()
    def pages_are_conserved(self) -> None:
        load = self.drive.scheduler.load()
        for pool, group in zip(load.pools, self.drive.limits.groups, strict=True):
            assert pool.free + pool.used + pool.held == pool.total == group.pages
        assert load.running <= self.drive.limits.max_running
        check_promises(self.drive)

    @invariant()
    def no_page_that_a_step_in_flight_sees_is_free(self) -> None:
        limits, in_flight = self.drive.limits, self.drive.scheduler._planner.in_flight
        for number, pool in enumerate(self.drive.scheduler._pools.pools):
            pages = {page for step in in_flight for page in touched(limits, step.plan, number)}
            idle = [page for page in pages if pool._users[page] + pool._holds[page] == 0]
            assert not idle

    @invariant()
    def rows_at_rest_keep_no_pages_for_drafts_and_none_behind_the_window(self) -> None:
        check_rest(self.drive)

    def teardown(self) -> None:
        if not hasattr(self, "drive"):
            return
        self.drive.run(depth=2)
        assert self.drive.ended.keys() == self.added.keys()
        for request_id, new in self.added.items():
            self.check_end(new, self.drive.tokens.get(request_id, []), self.drive.ended[request_id])
            wanted = new.sampling.top_logprobs is not None
            expected = [logprobs_of(token) if wanted else None for token in self.drive.tokens.get(request_id, [])]
            assert self.drive.logprobs.get(request_id, []) == expected
        self.drive.assert_at_rest()

    @staticmethod
    def check_end(new: NewRequest, tokens: Sequence[int], ended: Ended) -> None:
        """A request that was not cut has the tokens of a sequential run, one that was has a prefix of them."""
        expected = sequential_tokens(new, VOCABULARY)
        check_report(new, ended)
        if ended.reason in {FinishReason.ABORT, FinishReason.DEADLINE}:
            assert list(tokens) == expected[: len(tokens)]
        elif new.kind is RequestKind.EMBED:
            assert (ended.reason, ended.vector, list(tokens)) == (
                FinishReason.STOP,
                (float(prompt_hash(new.prompt)),),
                [],
            )
        elif new.grammar == BROKEN_GRAMMAR:
            assert (ended.reason, ended.message, list(tokens)) == (FinishReason.ERROR, "the grammar broke", [])
        else:
            assert list(tokens) == expected
            stopped = len(tokens) < new.max_new_tokens
            assert ended.reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
            assert ended.generated_tokens == len(tokens) + stopped


def check_report(new: NewRequest, ended: Ended) -> None:
    """Counts of drafts agree with each other and with what was generated."""
    report = ended.speculation
    if new.speculation is None or new.kind is RequestKind.EMBED or report is None:
        assert report is None
        return
    assert len(report.histogram) == new.speculation.max_tokens + 1
    assert sum(report.histogram) == report.steps
    assert sum(count * accepted for accepted, count in enumerate(report.histogram)) == report.accepted
    assert report.accepted <= report.drafted <= report.steps * new.speculation.max_tokens
    assert report.accepted <= ended.generated_tokens <= new.max_new_tokens
    assert 1 <= report.mean_acceptance_tokens <= 1 + new.speculation.max_tokens


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)


def _turn(drive: Drive, operations: Sequence[tuple[str, NewRequest | None]]) -> list[StepPlan]:
    for name, new in operations:
        if name == "add" and new is not None:
            drive.add(new)
        elif name == "launch":
            drive.launch()
        elif name == "abort" and new is not None:
            drive.abort(new.request_id)
        elif drive.launched:
            drive.commit()
    drive.run(depth=2)
    return drive.runner.plans


@settings(max_examples=40, deadline=None)
@given(limits=LIMIT_CHOICES, data=st.data())
def test_the_same_events_give_the_same_plans(limits: SchedulerLimits, data: st.DataObject) -> None:
    operations: list[tuple[str, NewRequest | None]] = []
    added: list[NewRequest] = []
    for name in data.draw(st.lists(st.sampled_from(("add", "launch", "commit", "abort")), max_size=40)):
        if name == "add" and len(added) < limits.max_waiting:
            added.append(data.draw(new_requests(len(added) + 1, 0.0)))
            operations.append((name, added[-1]))
        elif name == "abort" and added:
            operations.append((name, data.draw(st.sampled_from(added))))
        elif name in {"launch", "commit"}:
            operations.append((name, None))
    assert _turn(Drive(limits), operations) == _turn(Drive(limits), operations)


@settings(max_examples=40, deadline=None)
@given(limits=LIMIT_CHOICES, others=st.integers(1, 4), tenants=st.sampled_from(("a", "b", "ab")))
def test_a_large_request_is_served_while_small_ones_keep_coming(
    limits: SchedulerLimits, others: int, tenants: str
) -> None:
    drive = Drive(limits)
    for n in range(2, 2 + others):
        drive.add(request(n, range(5), tenant=tenants[n % len(tenants)]))
    drive.add(request(1, range(21), max_new_tokens=16, tenant="a"))
    serial = 100
    for _ in range(400):
        while drive.scheduler.load().waiting < others:
            serial += 1
            drive.add(request(serial, range(5), tenant=tenants[serial % len(tenants)]))
        drive.step()
        if 1 in drive.ended:
            return
    raise AssertionError("the large request starved")


TIGHT = st.one_of(
    st.builds(full, st.integers(10, 14)),
    st.builds(
        lambda pages, window, extra: (
            *full(pages),
            PoolGroup("sliding", (window + 3) // LIMITS.page_tokens + 1 + extra, window),
        ),
        st.sampled_from((10, 14, 60)),
        st.integers(2, 9),
        st.integers(0, 4),
    ),
)


@settings(max_examples=80, deadline=None)
@given(
    limits=LIMIT_CHOICES,
    groups=TIGHT,
    count=st.integers(2, 10),
    depth=st.sampled_from((1, 2)),
    speculation=SPECULATION,
    acceptance=st.sampled_from((0.0, 0.5, 0.9)),
)
def test_any_shortage_ends_and_everyone_gets_all_tokens(
    limits: SchedulerLimits,
    groups: tuple[PoolGroup, ...],
    count: int,
    depth: int,
    speculation: Speculation | None,
    acceptance: float,
) -> None:
    drive = Drive(replace(limits, groups=groups), acceptance=acceptance)
    added = [
        request(n, range(n, n + 20), max_new_tokens=20, priority=n % 2, speculation=speculation if n % 3 else None)
        for n in range(1, count + 1)
    ]
    for new in added:
        drive.add(new)
    for _ in range(count * 100):
        while len(drive.launched) < min(depth, limits.max_in_flight) and (plan := drive.launch()) is not None:
            check_plan(drive, plan)
            check_promises(drive)
        if drive.launched:
            drive.commit()
        check_rest(drive)
    for new in added:
        assert drive.tokens[new.request_id] == sequential_tokens(new, VOCABULARY)
    drive.assert_at_rest()
