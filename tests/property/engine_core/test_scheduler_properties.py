"""The scheduler under random adds, aborts, deadlines, plans and commits with two steps in flight.

The script runner computes tokens from the KV pages a plan names, so equality with a sequential run shows at once that
no page was lost, shared wrongly or reused too early.
"""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.contract.errors import Overloaded
from forebay.engine.limits import AdmissionPolicy
from forebay.engine.plan import TOKEN_ON_DEVICE, StepPlan
from forebay.engine.request import FinishReason, NewRequest, SamplingParams
from scheduler_build import LIMITS, VOCABULARY, Drive, request
from script_runner import sequential_tokens

PREFIXES = ((), tuple(range(9)), tuple(range(17)), (*range(9), 40, 41, 42))
LIMIT_CHOICES = st.builds(
    lambda pages, running, budget, policy, reuse, copy, in_flight: replace(
        LIMITS,
        pages=pages,
        max_running=running,
        max_batch_tokens=running + budget,
        admission=policy,
        prefix_reuse=reuse,
        min_copy_tokens=copy,
        max_in_flight=in_flight,
    ),
    st.integers(12, 40),
    st.integers(1, 5),
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


@st.composite
def new_requests(draw: st.DrawFn, request_id: int, now_s: float) -> NewRequest:
    """A request that fits every pool of `LIMIT_CHOICES`."""
    return request(
        request_id,
        draw(PROMPTS),
        max_new_tokens=draw(st.integers(1, 16)),
        sampling=SamplingParams(seed=draw(st.integers(0, 3))),
        stop_token_ids=draw(st.frozensets(st.integers(0, VOCABULARY - 1), max_size=4)),
        ignore_eos=draw(st.booleans()),
        tenant=draw(st.sampled_from("ab")),
        priority=draw(st.integers(0, 1)),
        deadline_s=now_s + draw(st.sampled_from((0.5, 3.0, 1e6, 1e6, 1e6))),
    )


def check_plan(drive: Drive, plan: StepPlan) -> None:
    """What must hold of every plan on its own."""
    rows = len(plan.slots)
    limits, pool = drive.limits, drive.scheduler._pool
    assert {
        len(array) for array in (plan.epochs, plan.starts, plan.counts, plan.page_tables[0], plan.samples, plan.fresh)
    } == {rows}
    assert 0 < sum(plan.counts) == len(plan.tokens) <= limits.max_batch_tokens
    assert len(set(plan.slots)) == rows <= limits.max_running
    written: list[int] = []
    for start, count, table in zip(plan.starts, plan.counts, plan.page_tables[0], strict=True):
        assert count >= 1
        assert len(set(table)) == len(table) >= limits.pages_for(start + count)
        written += table[start // limits.page_tokens : limits.pages_for(start + count)]
    assert len(set(written)) == len(written), "two rows write one page"
    assert all(pool._users[page] == 1 for page in written), "a page is written while it is shared"
    assert all(plan.counts[row] == 1 for row in range(plan.tokens.count(TOKEN_ON_DEVICE)))


class SchedulerMachine(RuleBasedStateMachine):
    """Random interleavings; `Drive` already fails on a second end or a token after the end."""

    drive: Drive

    def __init__(self) -> None:
        super().__init__()
        self.added: dict[int, NewRequest] = {}
        self.refused = 0

    @initialize(limits=LIMIT_CHOICES)
    def start(self, limits: object) -> None:
        assert isinstance(limits, type(LIMITS))
        self.drive = Drive(limits)

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

    @rule(seconds=st.sampled_from((0.1, 1.0)))
    def wait(self, seconds: float) -> None:
        self.drive.expire(self.drive.now_s + seconds)

    @invariant()
    def pages_are_conserved(self) -> None:
        load = self.drive.scheduler.load()
        assert load.pages_free + load.pages_used + load.pages_held == load.pages_total
        assert load.running <= self.drive.limits.max_running
        if self.drive.limits.admission is AdmissionPolicy.GUARANTEED_NO_EVICT:
            assert load.preemptions == 0

    @invariant()
    def no_page_of_a_step_in_flight_is_free(self) -> None:
        pool = self.drive.scheduler._pool
        for step in self.drive.scheduler._planner.in_flight:
            pages = {page for table in step.plan.page_tables[0] for page in table}
            pages |= {source for _, source, _, _ in step.plan.copies}
            assert all(pool._users[page] or pool._holds[page] for page in pages)

    def teardown(self) -> None:
        if not hasattr(self, "drive"):
            return
        self.drive.run(depth=2)
        assert self.drive.ended.keys() == self.added.keys()
        for request_id, new in self.added.items():
            self.check_end(new, self.drive.tokens.get(request_id, []), self.drive.ended[request_id].reason)
        self.drive.assert_at_rest()

    @staticmethod
    def check_end(new: NewRequest, tokens: Sequence[int], reason: FinishReason) -> None:
        """A request that was not cut has the tokens of a sequential run, one that was has a prefix of them."""
        expected = sequential_tokens(new, VOCABULARY)
        if reason in {FinishReason.LENGTH, FinishReason.STOP}:
            assert list(tokens) == expected
            assert (reason is FinishReason.LENGTH) == (len(tokens) == new.max_new_tokens)
        else:
            assert reason in {FinishReason.ABORT, FinishReason.DEADLINE}
            assert list(tokens) == expected[: len(tokens)]


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


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
def test_the_same_events_give_the_same_plans(limits: object, data: st.DataObject) -> None:
    assert isinstance(limits, type(LIMITS))
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
def test_a_large_request_is_served_while_small_ones_keep_coming(limits: object, others: int, tenants: str) -> None:
    assert isinstance(limits, type(LIMITS))
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


@settings(max_examples=30, deadline=None)
@given(limits=LIMIT_CHOICES, count=st.integers(2, 16), depth=st.sampled_from((1, 2)))
def test_any_shortage_ends_and_everyone_gets_all_tokens(limits: object, count: int, depth: int) -> None:
    assert isinstance(limits, type(LIMITS))
    drive = Drive(replace(limits, pages=10))
    added = [request(n, range(n, n + 20), max_new_tokens=20, priority=n % 2) for n in range(1, count + 1)]
    for new in added:
        drive.add(new)
    drive.run(depth, steps=count * 60)
    for new in added:
        assert drive.tokens[new.request_id] == sequential_tokens(new, VOCABULARY)
    drive.assert_at_rest()
