"""Builds step plans: which rows compute what, and who gets pages and slots.

Duty: the planning half of the scheduler. Rows are visited by rank, so a victim of preemption is never a row already
in the plan being built. A step that is not committed keeps a record of what it must give back. When pages are held by
a step in flight, a row that needs one waits for them instead of evicting anyone else. Called by `scheduler.py` only.
"""

from collections import deque
from dataclasses import dataclass, field

from forebay.contract.errors import Bug
from forebay.engine.blocks import BlockPool
from forebay.engine.limits import AdmissionPolicy, SchedulerLimits
from forebay.engine.plan import TOKEN_ON_DEVICE, StepPlan, StepResult
from forebay.engine.prefix import Match, PrefixIndex
from forebay.engine.request import Request, SlotStart, State
from forebay.engine.rows import RowTable
from forebay.engine.waiting import FairShare, WaitingQueue


@dataclass(slots=True)
class InFlight:
    """A step that is not committed: its plan, pages it fills, and what comes back with it.

    `filled` has (slot, epoch, first new block, end position) of rows that complete at least one page; `holds` has
    (slot, pages, the request that drains or None); `copy_sources` are pages read by the step's copies.
    """

    plan: StepPlan
    filled: list[tuple[int, int, int, int]]
    copy_sources: list[int]
    holds: list[tuple[int, tuple[int, ...], Request | None]] = field(default_factory=list)


class _Draft:
    """The arrays of a plan while it is built."""

    __slots__ = ("copies", "counts", "filled", "fresh", "samples", "slots", "starts", "tables", "tokens")

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.tokens: list[int] = []
        self.tables: list[tuple[int, ...]] = []
        self.samples: list[bool] = []
        self.fresh: list[SlotStart | None] = []
        self.copies: list[tuple[int, int, int]] = []
        self.filled: list[tuple[int, int, int, int]] = []


class Planner:
    """Plans over the scheduler's pool, rows and queue; counts what it planned."""

    def __init__(
        self,
        limits: SchedulerLimits,
        pool: BlockPool,
        index: PrefixIndex,
        rows: RowTable,
        waiting: WaitingQueue,
        share: FairShare,
    ) -> None:
        self._limits = limits
        self._pool = pool
        self._index = index
        self._rows = rows
        self._waiting = waiting
        self._share = share
        self.in_flight: deque[InFlight] = deque()
        self.steps = 0
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.reused_tokens = 0
        self.preemptions = 0

    def plan(self) -> StepPlan | None:
        """The next step; None when nothing can be computed now or enough steps are in flight."""
        if len(self.in_flight) >= self._limits.max_in_flight:
            return None
        draft = _Draft()
        prefilling = self._add_decodes(draft)
        budget = self._limits.max_batch_tokens - len(draft.slots)
        self.decode_tokens += len(draft.slots)
        for slot in prefilling:
            if budget > 0 and self._rows.requests[slot] is not None:
                budget -= self._add_chunk(draft, slot, budget, None)
        while budget > 0:
            admitted = self._admit(draft)
            if admitted is None:
                break
            budget -= self._add_chunk(draft, admitted.slot, budget, admitted.slot_start())
        return self._finish(draft) if draft.slots else None

    def take_oldest(self, result: StepResult) -> InFlight:
        """The record of the step that `result` belongs to; raises `Bug` when it is not the oldest or does not fit."""
        if not self.in_flight or self.in_flight[0].plan.step != result.step:
            raise Bug(f"step {result.step} is committed out of order")
        step = self.in_flight.popleft()
        if result.fault is None and len(result.slots) != sum(step.plan.samples):
            raise Bug(f"step {result.step} sampled {sum(step.plan.samples)} rows and returned {len(result.slots)}")
        return step

    def vacate(self, request: Request, *, ends: bool) -> bool:
        """Take a running request off its slot. True when a step in flight holds slot and pages until its commit."""
        rows, slot = self._rows, request.slot
        epoch = rows.epochs[slot]
        pages = rows.leave(slot)
        for step in reversed(self.in_flight):
            if (slot, epoch) in zip(step.plan.slots, step.plan.epochs, strict=True):
                self._pool.hold(pages)
                self._pool.release(reversed(pages))
                step.holds.append((slot, pages, request if ends else None))
                return True
        self._pool.release(reversed(pages))
        rows.give_back(slot)
        return False

    def _add_decodes(self, draft: _Draft) -> list[int]:
        """Add every row with one token to compute; returns the rows with more, by rank."""
        rows, size = self._rows, self._limits.page_tokens
        computed, length, known, max_length = rows.computed, rows.length, rows.known, rows.max_length
        capacity, last_token, tables, epochs = rows.capacity, rows.last_token, rows.tables, rows.epochs
        slots, starts, tokens, row_tables = draft.slots, draft.starts, draft.tokens, draft.tables
        prefilling: list[int] = []
        for slot in rows.order.copy():
            start, end = computed[slot], length[slot]
            if end - start > 1:
                prefilling.append(slot)
            elif start < end < max_length[slot] and (end <= capacity[slot] or self._grow(slot)):
                slots.append(slot)
                starts.append(start)
                tokens.append(last_token[slot] if known[slot] == end else TOKEN_ON_DEVICE)
                row_tables.append(tables[slot])
                computed[slot] = end
                length[slot] = end + 1
                if end % size == 0:
                    draft.filled.append((slot, epochs[slot], start // size, end))
        rows_planned = len(slots)
        draft.counts = [1] * rows_planned
        draft.samples = [True] * rows_planned
        draft.fresh = [None] * rows_planned
        return prefilling

    def _add_chunk(self, draft: _Draft, slot: int, budget: int, fresh: SlotStart | None) -> int:
        """Add up to `budget` known tokens of a row whose pages are all there; returns how many."""
        rows, size = self._rows, self._limits.page_tokens
        start, length = rows.computed[slot], rows.length[slot]
        end = min(length, start + budget)
        last = end == length
        draft.slots.append(slot)
        draft.starts.append(start)
        draft.counts.append(end - start)
        draft.tokens += rows.tokens[slot][start:end]
        draft.tables.append(rows.tables[slot][: self._limits.pages_for(end)])
        draft.samples.append(last)
        draft.fresh.append(fresh)
        rows.computed[slot] = end
        if last:
            rows.length[slot] = end + 1
        if end // size > start // size:
            draft.filled.append((slot, rows.epochs[slot], start // size, end))
        self.prefill_tokens += end - start
        return end - start

    def _grow(self, slot: int) -> bool:
        """One more page for a row, preempting lower ranks while none is free. False: the row waits or left itself."""
        page = self._pool.take_one()
        while page is None:
            if self._pool.held:
                return False
            victim = self._rows.order[-1]
            if victim == slot and len(self._rows.order) == 1:
                raise Bug(f"request {self._rows.ids[slot]} does not fit the pool alone")
            self._preempt(victim)
            if victim == slot:
                return False
            page = self._pool.take_one()
        self._rows.grow(slot, page)
        return True

    def _preempt(self, slot: int) -> None:
        request = self._rows.request_at(slot)
        self.vacate(request, ends=False)
        request.move(State.PREEMPTED)
        self._waiting.push_preempted(request)
        self.preemptions += 1

    def _admit(self, draft: _Draft) -> Request | None:
        """Give the head of the queue a slot and pages for all its tokens; None when there is none or no room."""
        request = self._waiting.head()
        if request is None or not self._rows.free:
            return None
        match = self._index.match(request.digests, request.tokens, request.tenant)
        pages = self._claim(request, match)
        if pages is None and match.copy_tokens:
            # The page to copy from takes a place of its own; without it the request may just fit.
            match = Match(match.pages, 0, 0)
            pages = self._claim(request, match)
        if pages is None:
            return None
        whole = len(match.pages)
        reused = whole * self._limits.page_tokens + match.copy_tokens
        if match.copy_tokens:
            draft.copies.append((match.copy_page, pages[whole], match.copy_tokens))
        self._waiting.remove(request)
        request.move(State.RUNNING)
        if not request.admitted:
            request.admitted = True
            request.cached_tokens = reused
            self._share.charge(request.tenant, request.charge_tokens)
        self.reused_tokens += reused
        self._rows.take(request, pages, reused)
        return request

    def _claim(self, request: Request, match: Match) -> tuple[int, ...] | None:
        """Share and take the request's pages and hold the page to copy from, or change nothing."""
        pool, limits = self._pool, self._limits
        source = (match.copy_page,) if match.copy_tokens else ()
        pool.share(match.pages)
        pool.hold(source)
        wanted = limits.pages_for(len(request.tokens))
        if limits.admission is AdmissionPolicy.GUARANTEED_NO_EVICT:
            longest = limits.pages_for(request.max_length - 1)
            headroom = self._rows.promised_pages() + longest - wanted
        else:
            # Running rows may each need a page soon; without this, admitting would mean preempting at once.
            headroom = len(self._rows.order)
        fresh = pool.take(wanted - len(match.pages)) if pool.free >= wanted - len(match.pages) + headroom else None
        if fresh is None:
            pool.release(reversed(match.pages))
            pool.unhold(source)
            return None
        return (*match.pages, *fresh)

    def _finish(self, draft: _Draft) -> StepPlan:
        self.steps += 1
        epochs = self._rows.epochs
        plan = StepPlan(
            step=self.steps,
            slots=tuple(draft.slots),
            epochs=tuple([epochs[slot] for slot in draft.slots]),
            starts=tuple(draft.starts),
            counts=tuple(draft.counts),
            tokens=tuple(draft.tokens),
            page_tables=(tuple(draft.tables),),
            samples=tuple(draft.samples),
            fresh=tuple(draft.fresh),
            copies=tuple([(0, *copy) for copy in draft.copies]),
            draft_limits=(0,) * len(draft.slots),
        )
        self.in_flight.append(InFlight(plan, draft.filled, [source for source, _, _ in draft.copies]))
        return plan
