"""Builds step plans: which rows compute what, and who gets pages and slots.

Duty: the planning half of the scheduler. Rows are visited by rank, so a victim of preemption is never a row already
in the plan being built. A step that is not committed keeps a record of what it must give back. When pages are held by
a step in flight, a row that needs one waits for them instead of evicting anyone else. Drafts come last: they take only
budget and pages that nobody else wants in this step. A step with drafts runs alone, since what it will have computed is
not known before its commit. Called by `scheduler.py` only.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from forebay.contract.errors import Bug
from forebay.engine.drafting import ProbeTurns
from forebay.engine.limits import SchedulerLimits
from forebay.engine.plan import TOKEN_ON_DEVICE, StepPlan, StepResult
from forebay.engine.pools import PagePools, Tables
from forebay.engine.prefix import Match, PrefixIndex
from forebay.engine.request import Request, SlotStart, State
from forebay.engine.rows import RowTable
from forebay.engine.waiting import FairShare, WaitingQueue


@dataclass(slots=True)
class InFlight:
    """A step that is not committed: its plan, what it changes, and what comes back with it.

    `filled` has (slot, epoch, first new block, end position) of rows that complete at least one page, `fallen` (slot,
    epoch, end position) of rows whose window moves past one; `started` are requests that never ran before;
    `copy_sources` are pages read by the step's copies. `holds` has (slot, pages, the request that drains or None).
    """

    plan: StepPlan
    filled: list[tuple[int, int, int, int]]
    fallen: list[tuple[int, int, int]]
    started: list[Request]
    copy_sources: list[Tables]
    drafts: bool
    holds: list[tuple[int, Tables, Request | None]] = field(default_factory=list)


class _Draft:
    """The arrays of a plan while it is built. The first `decodes` rows compute one token of a decode."""

    def __init__(self) -> None:
        self.decodes = 0
        self.slots: list[int] = []
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.tokens: list[int] = []
        self.samples: list[bool] = []
        self.fresh: list[SlotStart | None] = []
        self.limits: list[int] = []
        self.copies: list[tuple[int, int, int, int]] = []
        self.copy_sources: list[Tables] = []
        self.filled: list[tuple[int, int, int, int]] = []
        self.fallen: list[tuple[int, int, int]] = []
        self.started: list[Request] = []


class Planner:
    """Plans over the scheduler's pools, rows and queue; counts what it planned."""

    def __init__(
        self,
        limits: SchedulerLimits,
        pools: PagePools,
        index: PrefixIndex,
        rows: RowTable,
        waiting: WaitingQueue,
        share: FairShare,
    ) -> None:
        self._limits = limits
        self._pools = pools
        self._index = index
        self._rows = rows
        self._waiting = waiting
        self._share = share
        # The head of the queue that found no room, and the free pages by then: it is tried again when there are more.
        self._refused: tuple[int, tuple[int, ...]] | None = None
        self._turns = ProbeTurns()
        self.in_flight: deque[InFlight] = deque()
        self.steps = 0
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.reused_tokens = 0
        self.preemptions = 0

    def plan(self) -> StepPlan | None:
        """The next step; None when nothing can be computed now or the steps in flight must be committed first."""
        drafting = self._drafting_slots()
        if self._must_wait(drafting):
            return None
        draft = _Draft()
        prefilling = self._add_decodes(draft)
        budget = self._limits.max_batch_tokens - draft.decodes
        self.decode_tokens += draft.decodes
        for slot in prefilling:
            if budget > 0 and self._rows.requests[slot] is not None:
                budget -= self._add_chunk(draft, slot, budget, None)
        while budget > 0 and (admitted := self._admit(draft)) is not None:
            budget -= self._add_chunk(draft, admitted.slot, budget, admitted.slot_start())
        if not draft.slots:
            return None
        draft.limits = [0] * len(draft.slots)
        if drafting:
            self._add_drafts(draft, drafting, budget)
        return self._finish(draft)

    def _must_wait(self, drafting: frozenset[int]) -> bool:
        """Whether steps in flight must be committed before the next can be planned."""
        if not self.in_flight:
            return False
        return bool(drafting) or self.in_flight[-1].drafts or len(self.in_flight) >= self._limits.max_in_flight

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
        step = self._last_step_of(slot)
        firsts, pages = rows.leave(slot)
        if step is None:
            self._pools.release(request, firsts, pages)
            rows.give_back(slot)
            return False
        self._pools.hold(pages)
        self._pools.release(request, firsts, pages)
        step.holds.append((slot, pages, request if ends else None))
        return True

    def _last_step_of(self, slot: int) -> InFlight | None:
        """The latest step in flight that computes for the row now at `slot`."""
        row = (slot, self._rows.epochs[slot])
        for step in reversed(self.in_flight):
            if row in zip(step.plan.slots, step.plan.epochs, strict=True):
                return step
        return None

    def _drafting_slots(self) -> frozenset[int]:
        """Rows that want drafts once every step in flight is committed."""
        rows = self._rows
        wanting = {
            slot: request.drafts
            for slot, request in rows.drafting.items()
            if request.drafts is not None
            and rows.length[slot] - rows.computed[slot] == 1
            and rows.length[slot] + 1 < rows.max_length[slot]
            and request.drafts.limit(rows.length[slot])
        }
        return self._turns.choose(wanting, len(rows.order), self.steps) if wanting else frozenset()

    def _add_decodes(self, draft: _Draft) -> list[int]:
        """Add every row with one token to compute; returns the rows with more that have a page for one, by rank."""
        rows = self._rows
        computed, length, known, max_length = rows.computed, rows.length, rows.known, rows.max_length
        capacity, last_token = rows.capacity, rows.last_token
        slots, starts, tokens = draft.slots, draft.starts, draft.tokens
        prefilling: list[int] = []
        for slot in rows.order.copy():
            start, end = computed[slot], length[slot]
            # A row has nothing to compute when its last token is planned, or when it left in this loop.
            works = start < end < max_length[slot] and (start < capacity[slot] or self._grow(slot))
            if works and end - start > 1:
                prefilling.append(slot)
            elif works:
                slots.append(slot)
                starts.append(start)
                tokens.append(last_token[slot] if known[slot] == end else TOKEN_ON_DEVICE)
                computed[slot] = end
                length[slot] = end + 1
        self._note_decodes(draft)
        return prefilling

    def _note_decodes(self, draft: _Draft) -> None:
        """Complete the arrays of decodes; note which of them fill a page, and which move a window past one."""
        draft.decodes = len(draft.slots)
        draft.counts = [1] * draft.decodes
        draft.samples = [True] * draft.decodes
        draft.fresh = [None] * draft.decodes
        rows, size = self._rows, self._limits.page_tokens
        epochs, drop_at = rows.epochs, rows.drop_at
        ends = [(slot, start + 1) for slot, start in zip(draft.slots, draft.starts, strict=True)]
        draft.filled = [(slot, epochs[slot], (end - 1) // size, end) for slot, end in ends if end % size == 0]
        draft.fallen = [(slot, epochs[slot], end) for slot, end in ends if end >= drop_at[slot]]

    def _add_chunk(self, draft: _Draft, slot: int, budget: int, fresh: SlotStart | None) -> int:
        """Add up to `budget` known tokens of a row, as far as it gets pages; returns how many."""
        rows, size = self._rows, self._limits.page_tokens
        start, length = rows.computed[slot], rows.length[slot]
        # Other rows may each need a page soon; a chunk that took the last ones would only get them preempted.
        end = self._extend(slot, min(length, start + budget), reserve=len(rows.order) - 1)
        last = end == length
        draft.slots.append(slot)
        draft.starts.append(start)
        draft.counts.append(end - start)
        draft.tokens += rows.tokens[slot][start:end]
        draft.samples.append(last)
        draft.fresh.append(fresh)
        rows.computed[slot] = end
        if last:
            rows.length[slot] = end + 1
        epoch = rows.epochs[slot]
        if end // size > start // size:
            draft.filled.append((slot, epoch, start // size, end))
        if end >= rows.drop_at[slot]:
            draft.fallen.append((slot, epoch, end))
        self.prefill_tokens += end - start
        return end - start

    def _add_drafts(self, draft: _Draft, wanted: frozenset[int], budget: int) -> None:
        """Let decodes draft with the budget that is left and pages that are free."""
        rows = self._rows
        probes = False
        for row, slot in enumerate(draft.slots[: draft.decodes]):
            request = rows.requests[slot]
            if slot not in wanted or request is None or request.drafts is None:
                continue
            # Here `computed` is the length of what is known: the row's own token counts as computed already.
            length = rows.computed[slot]
            most = min(request.drafts.limit(length, draft.decodes), budget, rows.max_length[slot] - length - 1)
            limit = max(0, self._extend(slot, length + most, reserve=0) - length)
            draft.limits[row] = limit
            budget -= limit
            if not limit:
                request.drafts.postpone(length)
            probes |= not request.drafts.pays(draft.decodes)
        self._turns.note(probes, draft.decodes, self.steps)

    def _extend(self, slot: int, end: int, reserve: int) -> int:
        """Give a row free pages for positions below `end`, but for `reserve`; returns up to where it has them."""
        rows = self._rows
        if end <= rows.capacity[slot]:
            return end
        blocks = self._limits.pages_for(end)
        for group, pool in enumerate(self._pools.pools):
            missing = blocks - len(rows.tables[group][slot])
            if missing > 0:
                rows.grow(group, slot, pool.take(self._pools.allowance(group, slot, missing, reserve)) or ())
        return min(end, rows.capacity[slot])

    def _grow(self, slot: int) -> bool:
        """Pages for one token more in every group, preempting lower ranks while there is none.

        False: the row waits or left itself.
        """
        rows = self._rows
        blocks = rows.computed[slot] // self._limits.page_tokens + 1
        return all(
            len(rows.tables[group][slot]) >= blocks or self._grow_group(group, slot)
            for group in range(len(self._limits.groups))
        )

    def _grow_group(self, group: int, slot: int) -> bool:
        rows, pool = self._rows, self._pools.pools[group]
        while not self._pools.allowance(group, slot, 1, reserve=0):
            # What steps in flight hold comes back, and so does what falls out of the row's own window.
            if pool.held or (self._limits.groups[group].window_tokens and self._last_step_of(slot) is not None):
                return False
            victim = rows.order[-1]
            if victim == slot and len(rows.order) == 1:
                raise Bug(f"request {rows.ids[slot]} does not fit the pool alone")
            self._preempt(victim)
            if victim == slot:
                return False
        rows.grow(group, slot, pool.take(1) or ())
        return True

    def _preempt(self, slot: int) -> None:
        request = self._rows.request_at(slot)
        self.vacate(request, ends=False)
        request.move(State.PREEMPTED)
        self._waiting.push_preempted(request)
        self.preemptions += 1

    def _admit(self, draft: _Draft) -> Request | None:
        """Give the head of the queue a slot and pages to start with; None when there is none or no room."""
        request = self._waiting.head()
        if request is None or not self._rows.free or self._no_room_again(request):
            return None
        match = self._index.match(request.digests, request.tokens, request.tenant)
        tables = self._pools.claim(request, match)
        if tables is None and match.copy_tokens:
            # The page to copy from takes a place of its own; without it the request may just fit.
            match = Match(match.blocks, match.firsts, match.pages)
            tables = self._pools.claim(request, match)
        if tables is None:
            self._refused = (request.id, self._pools.free_pages())
            return None
        self._refused = None
        self._note_copies(draft, match, tables)
        reused = match.blocks * self._limits.page_tokens + match.copy_tokens
        self._waiting.remove(request)
        request.move(State.RUNNING)
        if not request.admitted:
            request.admitted = True
            request.cached_tokens = reused
            draft.started.append(request)
            self._share.charge(request.tenant, request.charge_tokens)
        self.reused_tokens += reused
        self._rows.take(request, tables, match.firsts, reused)
        return request

    def _no_room_again(self, request: Request) -> bool:
        """Whether this request found no room before and no page came free since."""
        if self._refused is None or self._refused[0] != request.id:
            return False
        return all(now <= before for now, before in zip(self._pools.free_pages(), self._refused[1], strict=True))

    def _note_copies(self, draft: _Draft, match: Match, tables: Tables) -> None:
        if match.copy_tokens:
            draft.copies += [
                (group, source, pages[match.blocks], match.copy_tokens)
                for group, (source, pages) in enumerate(zip(match.copy_pages, tables, strict=True))
            ]
            draft.copy_sources.append(tuple((source,) for source in match.copy_pages))

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
            page_tables=tuple([self._row_tables(draft, tables) for tables in self._rows.tables]),
            samples=tuple(draft.samples),
            fresh=tuple(draft.fresh),
            copies=tuple(draft.copies),
            draft_limits=tuple(draft.limits),
        )
        self.in_flight.append(
            InFlight(plan, draft.filled, draft.fallen, draft.started, draft.copy_sources, any(draft.limits))
        )
        return plan

    def _row_tables(self, draft: _Draft, tables: Sequence[tuple[int, ...]]) -> Tables:
        """Tables of the plan's rows in one group; a chunk gets as much as it reads and writes."""
        decodes = draft.decodes
        chunks = zip(draft.slots[decodes:], draft.starts[decodes:], draft.counts[decodes:], strict=True)
        return (
            *[tables[slot] for slot in draft.slots[:decodes]],
            *[tables[slot][: self._limits.pages_for(start + count)] for slot, start, count in chunks],
        )
