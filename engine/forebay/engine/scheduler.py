"""Decides what each step computes, and what its tokens mean for the requests.

Duty: `add`, `abort`, `expire`, `plan`, `commit`, `drain`; pure, time is passed in. Called by the core loop only.
Invariants: every added request gets exactly one `Ended`; `plan` n + 1 may come before `commit` n, commits come in
order; pages and slots of a request that left while a step uses them are held by that step and come back at its commit;
results of an older epoch are dropped. When pages run out, the lowest rank (priority, then latest arrival) is preempted
and recomputed; the best rank always fits alone, so this ends. Planning itself is in `planner.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from forebay.contract.errors import Bug, InvalidRequest, Overloaded
from forebay.engine.accept import Acceptor, RowEnd
from forebay.engine.drafting import DraftState
from forebay.engine.limits import MAX_TOKEN_ID, SchedulerLimits
from forebay.engine.plan import StepEvents, StepPlan, StepResult
from forebay.engine.planner import InFlight, Planner
from forebay.engine.pools import PagePools, PoolLoad
from forebay.engine.prefix import PrefixIndex
from forebay.engine.request import Ended, FinishReason, NewRequest, Request, RequestKind, State
from forebay.engine.rows import RowTable
from forebay.engine.waiting import FairShare, Tombstones, WaitingQueue

MIN_RETRY_S = 1.0
MAX_RETRY_S = 30.0
_INTERVAL_WEIGHT = 0.1


@dataclass(frozen=True, slots=True)
class SchedulerLoad:
    """State now, and counters since start. `waiting` counts queued and preempted requests.

    `draft_steps` are steps with drafts in any row; `accepted_tokens` of `drafted_tokens` were right.
    """

    running: int
    waiting: int
    draining_requests: int
    free_slots: int
    pending_prefill_tokens: int
    pools: tuple[PoolLoad, ...]
    draining: bool
    steps: int
    prefill_tokens: int
    decode_tokens: int
    reused_tokens: int
    preemptions: int
    draft_steps: int
    drafted_tokens: int
    accepted_tokens: int

    @property
    def pages_used(self) -> int:
        """Pages that running requests refer to, over all layer groups."""
        return sum(pool.used for pool in self.pools)

    @property
    def pages_held(self) -> int:
        """Pages that only steps in flight use, over all layer groups."""
        return sum(pool.held for pool in self.pools)

    @property
    def pages_free(self) -> int:
        """Pages that can be taken, cached ones included, over all layer groups."""
        return sum(pool.free for pool in self.pools)

    @property
    def pages_cached(self) -> int:
        """Free pages whose content can be reused, over all layer groups."""
        return sum(pool.cached for pool in self.pools)

    @property
    def pages_total(self) -> int:
        """All pages, over all layer groups."""
        return sum(pool.total for pool in self.pools)


class Scheduler:
    """The engine's one owner of requests, slots and pages."""

    def __init__(self, limits: SchedulerLimits, fingerprint: bytes) -> None:
        """`fingerprint` names model, weights and KV format; it separates cached prefixes of different ones."""
        self.limits = limits
        index = PrefixIndex(fingerprint, limits)
        self._rows = RowTable(limits)
        self._pools = PagePools(limits, index, self._rows)
        self._share = FairShare()
        self._waiting = WaitingQueue(self._share)
        self._tombstones = Tombstones(limits.max_tombstones, limits.tombstone_s)
        self._planner = Planner(limits, self._pools, index, self._rows, self._waiting, self._share)
        self._acceptor = Acceptor(self._rows, self._pools, index)
        self._requests: dict[int, Request] = {}
        self._draining = False
        self._arrivals = 0
        self._next_deadline_s = float("inf")
        self._last_end_s: float | None = None
        self._end_interval_s = 0.0

    @property
    def in_flight(self) -> int:
        """Steps planned and not yet committed."""
        return len(self._planner.in_flight)

    @property
    def idle(self) -> bool:
        """Whether no request is live and no step is in flight."""
        return not self._requests and not self._planner.in_flight

    def add(self, new: NewRequest, now_s: float) -> Ended | None:
        """Queue a request; an `Ended` comes back at once when its abort came first or its deadline has passed.

        Raises `InvalidRequest` naming the field, `Overloaded` with a time to come back, `Bug` for an id that is live.
        """
        if new.request_id in self._requests:
            raise Bug(f"request {new.request_id} was added twice")
        if self._tombstones.take(new.request_id, now_s):
            return Ended(new.request_id, FinishReason.ABORT, 0, 0)
        self.limits.check(len(new.prompt), 1 if new.kind is RequestKind.EMBED else new.max_new_tokens)
        if min(new.prompt) < 0 or max(new.prompt) > MAX_TOKEN_ID:
            raise InvalidRequest(f"token ids must be from 0 to {MAX_TOKEN_ID}", param="prompt")
        if new.deadline_s <= now_s:
            return Ended(new.request_id, FinishReason.DEADLINE, 0, 0)
        if self._draining:
            raise Overloaded("the engine is draining", after_s=MIN_RETRY_S)
        if self._waiting.queued >= self.limits.max_waiting:
            raise Overloaded(f"{self._waiting.queued} requests are waiting already", after_s=self._retry_after_s())
        self._arrivals += 1
        request = Request(new, self._arrivals)
        if new.speculation is not None and new.kind is RequestKind.GENERATE:
            request.drafts = DraftState(new.speculation)
        self._requests[request.id] = request
        self._share.enter(request.tenant)
        self._waiting.push(request)
        self._next_deadline_s = min(self._next_deadline_s, request.deadline_s)
        return None

    def abort(self, request_id: int, now_s: float) -> list[Ended]:
        """End a request now, in any state. An unknown id leaves a tombstone; one that ended already is left alone."""
        request = self._requests.get(request_id)
        if request is None:
            self._tombstones.put(request_id, now_s)
            return []
        if request.state is State.DRAINING:
            return []
        return [self._end(request, FinishReason.ABORT, now_s)]

    def expire(self, now_s: float) -> list[Ended]:
        """End every request whose deadline has passed, waiting or running. Cheap when none can have."""
        self._tombstones.expire(now_s)
        self._pools.tick(now_s)
        if now_s < self._next_deadline_s:
            return []
        live = self._live()
        due = [request for request in live if request.deadline_s <= now_s]
        left = (request.deadline_s for request in live if request.deadline_s > now_s)
        self._next_deadline_s = min(left, default=float("inf"))
        return [self._end(request, FinishReason.DEADLINE, now_s) for request in due]

    def drain(self) -> None:
        """Take no new requests; those already here go on."""
        self._draining = True

    def end_all(self, reason: FinishReason, now_s: float, message: str = "") -> list[Ended]:
        """End every live request, in order of arrival."""
        return [self._end(request, reason, now_s, message) for request in self._live()]

    def plan(self) -> StepPlan | None:
        """The next step, or None when there is nothing to compute or `max_in_flight` steps are in flight.

        Call `expire` before, so that no work is planned for requests whose time is over.
        """
        return self._planner.plan()

    def commit(self, result: StepResult, now_s: float) -> StepEvents:
        """Take over the tokens of the oldest step in flight and release what it held.

        A result with a fault ends every live request with `ERROR`. Raises `Bug` for a step out of order or a result
        that does not fit its plan.
        """
        step = self._planner.take_oldest(result)
        self._pools.tick(now_s)
        if result.fault is not None:
            ended = self.end_all(FinishReason.ERROR, now_s, result.fault)
            self._release(step)
            return StepEvents((), (), tuple(ended))
        live = (request for request in step.started if request.state in {State.RUNNING, State.PREEMPTED})
        started = tuple([(request.id, request.cached_tokens) for request in live])
        accepted = self._acceptor.accept(step, result)
        ended = [self._end_row(end, now_s) for end in accepted.ends]
        self._release(step)
        return StepEvents(
            request_ids=tuple(accepted.ids),
            tokens=tuple(accepted.tokens),
            ended=tuple(ended),
            logprobs=tuple(accepted.logprobs),
            started=started,
        )

    def load(self) -> SchedulerLoad:
        """A snapshot; counts the pending tokens of every waiting and running request."""
        rows, counters, drafts = self._rows, self._planner, self._acceptor
        waiting_tokens = sum(len(request.tokens) for request in self._waiting)
        prefill_tokens = sum(rows.length[slot] - rows.computed[slot] - 1 for slot in rows.order)
        return SchedulerLoad(
            running=len(rows.order),
            waiting=len(self._waiting),
            draining_requests=len(self._requests) - len(rows.order) - len(self._waiting),
            free_slots=rows.free,
            pending_prefill_tokens=waiting_tokens + prefill_tokens,
            pools=self._pools.loads(),
            draining=self._draining,
            steps=counters.steps,
            prefill_tokens=counters.prefill_tokens,
            decode_tokens=counters.decode_tokens,
            reused_tokens=counters.reused_tokens,
            preemptions=counters.preemptions,
            draft_steps=drafts.draft_steps,
            drafted_tokens=drafts.drafted_tokens,
            accepted_tokens=drafts.accepted_tokens,
        )

    def _end_row(self, end: RowEnd, now_s: float) -> Ended:
        request = self._rows.request_at(end.slot)
        return self._end(request, end.reason, now_s, end.message, end.undelivered, end.vector)

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        now_s: float,
        message: str = "",
        undelivered: int = 0,
        vector: tuple[float, ...] = (),
    ) -> Ended:
        """The one place where a request ends: its event now, its memory now or when the last step lets go."""
        self._pools.tick(now_s)
        event = request.ended(reason, undelivered, message, vector)
        if request.state is State.RUNNING:
            held = self._planner.vacate(request, ends=True)
            request.move(State.DRAINING if held else State.DONE)
        else:
            self._waiting.remove(request)
            request.move(State.DONE)
        if request.admitted:
            self._share.charge(request.tenant, len(request.tokens) - request.charge_tokens)
        self._share.leave(request.tenant)
        if request.state is State.DONE:
            del self._requests[request.id]
        self._note_end(now_s)
        return event

    def _release(self, step: InFlight) -> None:
        for slot, pages, request in step.holds:
            self._pools.unhold(pages)
            self._rows.give_back(slot)
            if request is not None:
                request.move(State.DONE)
                del self._requests[request.id]
        for sources in step.copy_sources:
            self._pools.unhold(sources)

    def _live(self) -> list[Request]:
        """Requests that have not ended, in order of arrival."""
        return _by_arrival(request for request in self._requests.values() if request.state is not State.DRAINING)

    def _note_end(self, now_s: float) -> None:
        if self._last_end_s is not None:
            self._end_interval_s += _INTERVAL_WEIGHT * (now_s - self._last_end_s - self._end_interval_s)
        self._last_end_s = now_s

    def _retry_after_s(self) -> float:
        """Time in which the queue empties at the present rate of ends, within bounds."""
        return min(MAX_RETRY_S, max(MIN_RETRY_S, self._end_interval_s * self._waiting.queued))


def _by_arrival(requests: Iterable[Request]) -> list[Request]:
    return sorted(requests, key=lambda request: request.arrival)
