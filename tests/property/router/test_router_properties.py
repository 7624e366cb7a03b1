"""What must hold for every input of the router's pure modules."""

import itertools
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from forebay.contract.errors import UpstreamFault
from forebay.contract.wire import LoadReport, Routes, RouteWeight
from forebay.router.breaker import Breaker, BreakerLimits, BreakerState
from forebay.router.framing import ChunkedScanner
from forebay.router.heads import Framing, ResponseHead
from forebay.router.leases import Lease, Ledger
from forebay.router.policy import Choice, Refusal, choose
from forebay.router.relay import BodyRelay
from forebay.router.retry import MAX_RETRIES, Failure, RetryBudget, Verdict, decide
from forebay.router.split import pick_revision
from forebay.router.view import ClusterView, Endpoint, EndpointState, make_view

REVISIONS = ("aa", "bb", "cc")
failures = st.sampled_from(list(Failure))


def report(running: int, waiting: int = 0, *, draining: bool = False) -> LoadReport:
    return LoadReport("e", running, waiting, waiting * 100, running, 100, 8, 1000.0, 50.0, draining)


class LedgerMachine(RuleBasedStateMachine):
    """Leases open and close in any order while polls start, answer and get lost."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.open: set[Lease] = set()
        self.unreported: set[Lease] = set()
        self.before_poll: set[Lease] = set()
        self.now_s = 0.0

    @rule(target=leases)
    def dispatch(self) -> Lease:
        lease = self.ledger.open()
        self.open.add(lease)
        self.unreported.add(lease)
        return lease

    @rule(lease=consumes(leases), times=st.integers(1, 3))
    def close(self, lease: Lease, times: int) -> None:
        for _ in range(times):
            lease.close()
        self.open.discard(lease)
        self.unreported.discard(lease)

    @rule()
    def poll_starts(self) -> None:
        self.ledger.poll_started()
        self.before_poll = set(self.unreported)

    @rule(running=st.integers(0, 50), waiting=st.integers(0, 50))
    def poll_answers(self, running: int, waiting: int) -> None:
        self.now_s += 0.5
        self.ledger.poll_answered(report(running, waiting), self.now_s)
        self.unreported -= self.before_poll
        self.before_poll = set()

    @invariant()
    def counters_are_the_sets(self) -> None:
        assert self.ledger.inflight == len(self.open)
        assert self.ledger.unreported() == len(self.unreported)
        assert self.ledger.load(self.now_s, 5.0) >= len(self.open)
        assert self.ledger.load(self.now_s + 60, 5.0) == len(self.open)

    def teardown(self) -> None:
        for lease in list(self.open):
            lease.close()
            lease.close()
        assert (self.ledger.inflight, self.ledger.unreported()) == (0, 0)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


@st.composite
def states(draw: st.DrawFn) -> EndpointState:
    name = draw(st.text(string.ascii_lowercase, min_size=1, max_size=3))
    revision = draw(st.sampled_from(REVISIONS))
    state = EndpointState(Endpoint(name, "10.0.0.1", draw(st.integers(1, 9)), revision), BreakerLimits())
    state.discovered(ready=draw(st.booleans()), terminating=draw(st.booleans()))
    state.avoid_until_s = draw(st.sampled_from([0.0, 200.0]))
    state.last_pick = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 4))):
        state.breaker.failed(99.5)
    for _ in range(draw(st.integers(0, 5))):
        state.ledger.open()
    if draw(st.booleans()):
        state.reported(
            report(draw(st.integers(0, 20)), draining=draw(st.booleans())), draw(st.sampled_from([1.0, 99.0]))
        )
    return state


@st.composite
def views(draw: st.DrawFn) -> ClusterView:
    found = draw(st.lists(states(), max_size=8, unique_by=lambda state: state.endpoint))
    weights = draw(
        st.lists(st.tuples(st.sampled_from(REVISIONS), st.integers(0, 3)), max_size=3, unique_by=lambda w: w[0])
    )
    routes = Routes(1, ("m",), tuple(RouteWeight(*weight) for weight in weights))
    return make_view(draw(st.sampled_from([routes, routes, routes, None])), tuple(found), synced=True)


@settings(max_examples=500, deadline=None)
@given(views(), st.binary(max_size=8), st.data())
def test_a_choice_is_always_allowed_and_made_whenever_one_is_possible(
    view: ClusterView, key: bytes, data: st.DataObject
) -> None:
    tried = data.draw(st.lists(st.sampled_from(view.endpoints), unique=True)) if view.endpoints else []
    weighted = {w.revision for w in view.routes.weights if w.weight > 0} if view.routes else set()
    allowed = [s for s in view.endpoints if s.routable and s.endpoint.revision in weighted and s not in tried]
    choice = choose(view, "m", key, 100.0, tried)
    if isinstance(choice, Choice):
        assert choice.target in allowed
        assert choice.revision == choice.target.endpoint.revision
    else:
        assert choice is Refusal.NO_ENDPOINT
        assert not allowed
    assert choose(view, "m", key, 100.0, tried) == choice


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 9), st.integers(0, 9))
def test_open_breakers_never_take_away_more_than_half_of_a_pool(total: int, broken: int) -> None:
    pool = []
    for number in range(total):
        state = EndpointState(Endpoint(f"p{number}", "10.0.0.1", 1, "aa"), BreakerLimits())
        state.discovered(ready=True, terminating=False)
        if number < broken:
            for _ in range(3):
                state.breaker.failed(99.9)
        pool.append(state)
    view = make_view(Routes(1, ("m",), (RouteWeight("aa", 1),)), tuple(pool), synced=True)
    reached = set()
    for turn in range(2 * total):
        choice = choose(view, "m", b"", 100.0)
        assert isinstance(choice, Choice)
        choice.target.last_pick = turn + 1
        reached.add(choice.target.endpoint.pod)
    assert len(reached) == total - min(broken, total, total // 2)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(0, 3), st.integers(1, 5))
def test_raising_one_weight_moves_keys_only_towards_it(weights: list[int], index: int, more: int) -> None:
    index %= len(weights)
    before = [RouteWeight(f"r{n}", weight) for n, weight in enumerate(weights)]
    after = [RouteWeight(w.revision, w.weight + (more if n == index else 0)) for n, w in enumerate(before)]
    for number in range(40):
        key = str(number).encode()
        old, new = pick_revision(before, key), pick_revision(after, key)
        assert new in (old, f"r{index}")
        assert pick_revision(list(reversed(after)), key) == new


@pytest.mark.parametrize("weights", [(1, 1), (9, 1), (1, 2, 7), (50, 50, 0), (99, 1)])
def test_shares_of_keys_follow_the_weights(weights: tuple[int, ...]) -> None:
    rows = [RouteWeight(f"r{n}", weight) for n, weight in enumerate(weights)]
    keys = 20_000
    picks = [pick_revision(rows, b"session-%d" % number) for number in range(keys)]
    for row in rows:
        share = row.weight / sum(weights)
        # Five standard deviations of a binomial share.
        assert abs(picks.count(row.revision) / keys - share) <= 5 * (share * (1 - share) / keys) ** 0.5


@given(failures, st.lists(failures, max_size=4), st.floats(0, 10), st.booleans())
def test_a_retry_is_never_made_after_a_byte_a_started_prefill_or_the_limit(
    failure: Failure, history: list[Failure], tokens: float, sent: bool
) -> None:
    verdict = decide(failure, tuple(history), bytes_sent=sent, budget=RetryBudget(tokens=tokens))
    started = {Failure.RESET, Failure.FIRST_BYTE_TIMEOUT, Failure.STALL, Failure.BAD_RESPONSE}
    if sent or failure in started or len(history) >= MAX_RETRIES:
        assert verdict is Verdict.GIVE_UP
    elif failure is Failure.CONNECT:
        assert verdict is Verdict.RETRY
    elif tokens < 1 or (failure is Failure.STATUS_429 and failure in history):
        assert verdict is Verdict.GIVE_UP


@given(st.lists(st.sampled_from(["request", "retry"]), max_size=300))
def test_retries_that_cost_work_stay_within_a_tenth_of_requests_and_the_first_burst(steps: list[str]) -> None:
    budget = RetryBudget()
    requests = retries = 0
    for step in steps:
        if step == "request":
            budget.request()
            requests += 1
        elif decide(Failure.STATUS_503, (), bytes_sent=False, budget=budget) is Verdict.RETRY:
            budget.spend(Failure.STATUS_503)
            retries += 1
    assert retries <= 0.1 * requests + 10 + 1e-9


@st.composite
def chunked_bodies(draw: st.DrawFn) -> tuple[bytes, bytes]:
    pieces = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
    extension = draw(st.sampled_from([b"", b";x=1", b" ;y"]))
    wire = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    trailer = draw(st.sampled_from([b"", b"X-T: 1\r\n"]))
    return b"".join(pieces), wire + b"0\r\n" + trailer + b"\r\n"


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(marks)]


def decoded(wire: bytes) -> tuple[bytes, bool]:
    scanner = ChunkedScanner()
    scan = scanner.feed(wire)
    assert scan.consumed == len(wire)
    return b"".join(scan.payload), scanner.done


@settings(deadline=None)
@given(chunked_bodies(), st.lists(st.integers(0, 400), max_size=8), st.binary(max_size=5), st.booleans())
def test_a_relayed_chunked_body_is_the_same_however_it_was_read(
    body: tuple[bytes, bytes], cuts: list[int], after: bytes, http_10: bool
) -> None:
    payload, wire = body
    head = ResponseHead(200, b"", [], Framing.CHUNKED, 0, True, True, False, None)
    relay = BodyRelay(head, http_10=http_10)
    out = b""
    for piece in cut(wire + after, cuts):
        if relay.done:
            break
        out += relay.feed(piece)
        if not relay.done and not http_10:
            assert decoded(out)[1] is False
            event = relay.error_tail(b"\n\ndata: x\n\n")
            assert decoded(out + event) == (decoded(out)[0] + b"\n\ndata: x\n\n", False)
    assert relay.done
    assert out == payload if http_10 else decoded(out) == (payload, True)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
def test_any_bytes_are_read_or_refused_and_never_run_over(data: bytes, cuts: list[int]) -> None:
    scanner = ChunkedScanner()
    seen = 0
    try:
        for piece in cut(data, cuts):
            scan = scanner.feed(piece)
            assert 0 <= scan.consumed <= len(piece)
            seen += scan.consumed
            if scanner.done:
                break
    except UpstreamFault:
        return
    assert seen <= len(data)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["ok", "fail", "send", "leave", "wait"]), max_size=60))
def test_a_breaker_moves_by_its_table_and_always_opens_again(steps: list[str]) -> None:
    breaker = Breaker(BreakerLimits())
    now_s = 0.0
    for step in steps:
        match step:
            case "ok":
                breaker.succeeded()
                assert breaker.state is BreakerState.CLOSED
            case "fail":
                breaker.failed(now_s)
            case "send" if not breaker.blocks(now_s):
                breaker.dispatched(now_s)
            case "leave":
                breaker.abandoned(now_s)
            case _:
                now_s += 0.7
    if breaker.state is not BreakerState.CLOSED:
        breaker.abandoned(now_s)
        assert not breaker.blocks(now_s + BreakerLimits().max_open_s)
