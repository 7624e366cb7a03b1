"""What the result of a step means for the rows: delivered tokens, ends, pages that are full or out of sight.

Duty: the commit half of the scheduler, up to the ends of requests, which `scheduler.py` makes. The common step, one
token a row, takes a plain loop; drafts, log probabilities, embeddings and faults of single rows take the general one.
Invariants: rows with an old epoch are skipped; tokens after a stop token or beyond a request's length are dropped;
after a step with drafts a row has KV for what was accepted and pages for the next token, no more. Called by
`scheduler.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from forebay.contract.errors import Bug
from forebay.engine.plan import StepResult, TokenLogprobs
from forebay.engine.planner import InFlight
from forebay.engine.pools import PagePools
from forebay.engine.prefix import PrefixIndex
from forebay.engine.request import FinishReason, RequestKind
from forebay.engine.rows import RowTable


@dataclass(frozen=True, slots=True)
class RowEnd:
    """The row at `slot` is finished; `undelivered` counts the stop token."""

    slot: int
    reason: FinishReason
    undelivered: int = 0
    message: str = ""
    vector: tuple[float, ...] = ()


@dataclass(slots=True)
class Accepted:
    """Delivered tokens in order, parallel to `ids`, and rows that are finished. `logprobs` may be empty."""

    ids: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    ends: list[RowEnd] = field(default_factory=list)


class Acceptor:
    """Applies results to rows, pools and index; counts drafts."""

    def __init__(self, rows: RowTable, pools: PagePools, index: PrefixIndex) -> None:
        self._rows = rows
        self._pools = pools
        self._index = index
        self.draft_steps = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0

    def accept(self, step: InFlight, result: StepResult) -> Accepted:
        """Take over what the step computed. Raises `Bug` for a result that does not fit."""
        for slot, epoch, first_block, end in step.filled:
            if self._rows.epochs[slot] == epoch:
                self._enter(slot, first_block, end)
        for slot, epoch, end in step.fallen:
            if self._rows.epochs[slot] == epoch:
                self._let_fall(slot, end)
        rows = len(result.slots)
        if not step.drafts and not result.logprobs and result.token_counts.count(1) == rows == len(result.tokens):
            return self._accept_plain(result)
        return self._accept_runs(step, result)

    def _accept_plain(self, result: StepResult) -> Accepted:
        """One token for every row."""
        rows, accepted = self._rows, Accepted()
        epochs, row_tokens, known, row_ids = rows.epochs, rows.tokens, rows.known, rows.ids
        last_token, stop_ids, max_length = rows.last_token, rows.stop_ids, rows.max_length
        ids, tokens, ends = accepted.ids, accepted.tokens, accepted.ends
        for slot, epoch, token in zip(result.slots, result.epochs, result.tokens, strict=True):
            if epochs[slot] != epoch:
                continue
            if token in stop_ids[slot]:
                ends.append(RowEnd(slot, FinishReason.STOP, undelivered=1))
                continue
            row_tokens[slot].append(token)
            last_token[slot] = token
            known[slot] = count = known[slot] + 1
            ids.append(row_ids[slot])
            tokens.append(token)
            if count == max_length[slot]:
                ends.append(RowEnd(slot, FinishReason.LENGTH))
        return accepted

    def _accept_runs(self, step: InFlight, result: StepResult) -> Accepted:
        """Any number of tokens for each row."""
        if sum(result.token_counts) != len(result.tokens) or len(result.token_counts) != len(result.slots):
            raise Bug(f"step {result.step} returned {len(result.tokens)} tokens for counts {result.token_counts}")
        accepted, offset = Accepted(), 0
        limits = [limit for limit, sampled in zip(step.plan.draft_limits, step.plan.samples, strict=True) if sampled]
        faults, vectors = dict(result.faults), dict(result.vectors)
        for place, (slot, epoch, count) in enumerate(
            zip(result.slots, result.epochs, result.token_counts, strict=True)
        ):
            if self._rows.epochs[slot] != epoch:
                pass
            elif not count:
                accepted.ends.append(self._wordless(slot, faults.get(place), vectors.get(slot)))
            else:
                used = self._take_run(slot, offset, count, result, accepted)
                if limits[place]:
                    self._settle(slot, limits[place], result.drafted[place], count, used)
            offset += count
        self.draft_steps += step.drafts
        return accepted

    def _take_run(self, slot: int, offset: int, count: int, result: StepResult, accepted: Accepted) -> int:
        """Deliver the tokens of one row up to its end; returns how many were used, a stop token included."""
        rows = self._rows
        room = rows.max_length[slot] - rows.known[slot]
        run = result.tokens[offset : offset + min(count, room)]
        stops = rows.stop_ids[slot]
        kept = next((place for place, token in enumerate(run) if token in stops), len(run))
        if kept:
            rows.tokens[slot] += run[:kept]
            rows.last_token[slot] = run[kept - 1]
            rows.known[slot] += kept
            accepted.ids += [rows.ids[slot]] * kept
            accepted.tokens += run[:kept]
            if result.logprobs:
                accepted.logprobs += result.logprobs[offset : offset + kept]
        if kept < len(run):
            accepted.ends.append(RowEnd(slot, FinishReason.STOP, undelivered=1))
            return kept + 1
        if kept == room:
            accepted.ends.append(RowEnd(slot, FinishReason.LENGTH))
        return kept

    def _settle(self, slot: int, limit: int, drafted: int, count: int, used: int) -> None:
        """Bring a row that drafted to where its accepted tokens are."""
        rows, size = self._rows, self._rows.page_tokens
        known, start = rows.known[slot], rows.computed[slot] - 1
        # A row that ends here keeps fewer tokens than were computed; its pages go back right after.
        kept = min(known, start + used)
        if kept // size > start // size:
            self._enter(slot, start // size, kept)
        rows.computed[slot], rows.length[slot] = known - 1, known
        request = rows.request_at(slot)
        for group, first, pages in rows.trim(slot, -(-known // size)):
            self._pools.release_blocks(request, group, first, pages)
        if known - 1 >= rows.drop_at[slot]:
            self._let_fall(slot, known - 1)
        if request.drafts is not None:
            hits = min(count - 1, used)
            request.drafts.note(limit, drafted, hits, known)
            self.drafted_tokens += drafted
            self.accepted_tokens += hits

    def _wordless(self, slot: int, fault: str | None, vector: Sequence[float] | None) -> RowEnd:
        """The end of a row that got no token: it embeds, or it cannot go on."""
        request = self._rows.request_at(slot)
        if fault is not None:
            return RowEnd(slot, FinishReason.ERROR, message=fault)
        if vector is None or request.kind is not RequestKind.EMBED:
            raise Bug(f"request {request.id} got neither a token nor a vector")
        return RowEnd(slot, FinishReason.STOP, vector=tuple(vector))

    def _enter(self, slot: int, first_block: int, end: int) -> None:
        """Make the full pages of a row findable whose last block ends at or before position `end`."""
        rows = self._rows
        request = rows.request_at(slot)
        for block in range(first_block, end // rows.page_tokens):
            pages = [tables[slot][block] for tables in rows.tables]
            self._index.enter(pages, request.digests, block, request.tokens, request.tenant)

    def _let_fall(self, slot: int, computed: int) -> None:
        """Give back pages that fell out of a window: no step from position `computed` on reads them."""
        request = self._rows.request_at(slot)
        for group, first, pages in self._rows.fall(slot, computed):
            self._pools.release_blocks(request, group, first, pages)
