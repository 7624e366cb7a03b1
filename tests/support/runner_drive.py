"""Drives a runner as a scheduler would, in any composition a test wants: chunks, batch mates, preemption, drafts.

`RunnerDrive` keeps the sequences' tokens and pages and builds the plans. `random_run` serves a set of sequences in
random company; what each gets must not depend on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from forebay.engine.plan import TOKEN_ON_DEVICE, Runner, StepPlan, StepResult, TokenLogprobs
from forebay.engine.request import RequestKind, SamplingParams, SlotStart, Speculation


@dataclass
class Served:
    """A sequence to generate, and what it has got."""

    prompt: list[int]
    sampling: SamplingParams
    wanted: int
    stop_ids: frozenset[int] = frozenset()
    grammar: str = ""
    speculation: Speculation | None = None
    kind: RequestKind = RequestKind.GENERATE
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    pages: list[list[int]] = field(default_factory=list)
    slot: int = -1
    epoch: int = 0
    on_device: int = 0
    ended: str = ""
    drafted: int = 0
    accepted: int = 0
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    vector: tuple[float, ...] = ()

    @property
    def output(self) -> list[int]:
        """Generated tokens, a stop token at the end included."""
        return self.tokens[len(self.prompt) :]


class RunnerDrive:
    """Sequences over one runner with `slots` slots and `pages` pages of `page_tokens` in each of `groups` groups."""

    def __init__(self, runner: Runner, slots: int, pages: int, page_tokens: int, groups: int = 1) -> None:
        self.runner = runner
        self.page_tokens = page_tokens
        self.results: list[StepResult] = []
        self._free_slots = list(range(slots))
        self._free_pages = [list(range(pages)) for _ in range(groups)]
        self._step = 0
        self._epoch = 0

    def step(self, counts: Sequence[tuple[Served, int]], limits: Mapping[int, int] | None = None) -> StepResult:
        """Compute `counts` more tokens of each sequence, drafting up to `limits[slot]`, and take over the result."""
        plan = self.plan(counts, limits or {})
        result = self.runner.launch(plan).result()
        self.take(plan, result, [served for served, _ in counts])
        return result

    def plan(self, counts: Sequence[tuple[Served, int]], limits: Mapping[int, int]) -> StepPlan:
        """The plan of such a step; the sequences' last tokens may still be on the device."""
        fresh = [self._seat(served) for served, _ in counts]
        starts, tokens, samples = [], [], []
        for served, count in counts:
            end = served.computed + count
            known = served.tokens[served.computed : end]
            tokens += known + [TOKEN_ON_DEVICE] * (count - len(known))
            starts.append(served.computed)
            samples.append(end >= len(served.tokens) + served.on_device)
            served.computed = end
            served.on_device += samples[-1]
            self._grow(served, end + limits.get(served.slot, 0))
        self._step += 1
        return StepPlan(
            step=self._step,
            slots=tuple(served.slot for served, _ in counts),
            epochs=tuple(served.epoch for served, _ in counts),
            starts=tuple(starts),
            counts=tuple(count for _, count in counts),
            tokens=tuple(tokens),
            page_tables=tuple(
                tuple(tuple(served.pages[group]) for served, _ in counts) for group in range(len(self._free_pages))
            ),
            samples=tuple(samples),
            fresh=tuple(fresh),
            copies=(),
            draft_limits=tuple(limits.get(served.slot, 0) for served, _ in counts),
        )

    def take(self, plan: StepPlan, result: StepResult, rows: Sequence[Served]) -> None:
        """Take over a result as the scheduler does: tokens up to a stop token or the wanted number."""
        assert result.fault is None, result.fault
        self.results.append(result)
        sampled = [served for served, samples in zip(rows, plan.samples, strict=True) if samples]
        assert result.slots == tuple(served.slot for served in sampled)
        faults, vectors = dict(result.faults), dict(result.vectors)
        first = 0
        for index, served in enumerate(sampled):
            count = result.token_counts[index]
            served.on_device -= 1
            if index in faults or served.slot in vectors:
                served.ended = faults.get(index, "embedded")
                served.vector = vectors.get(served.slot, ())
            else:
                assert 1 <= count <= 1 + result.drafted[index]
                served.computed += count - 1
                served.drafted += result.drafted[index]
                served.accepted += count - 1
                self._append(served, result.tokens[first : first + count], result.logprobs[first : first + count])
            first += count

    def preempt(self, served: Served) -> None:
        """Take a sequence off its slot; it starts anew with the tokens it has."""
        self._free_slots.append(served.slot)
        for free, pages in zip(self._free_pages, served.pages, strict=True):
            free.extend(pages)
        served.pages, served.slot, served.computed = [], -1, 0

    def random_run(self, all_served: Sequence[Served], random: np.random.Generator, max_drafts: int = 0) -> None:
        """Serve all to their ends: random rows, chunks and draft limits, and now and then a preemption."""
        while live := [served for served in all_served if not served.ended]:
            counts = self._random_rows(live, random)
            limits = {served.slot: self._random_limit(served, count, random, max_drafts) for served, count in counts}
            self.step(counts, limits)
            for served in all_served:
                if served.slot >= 0 and (served.ended or random.random() < 0.03):
                    self.preempt(served)

    def _random_rows(self, live: Sequence[Served], random: np.random.Generator) -> list[tuple[Served, int]]:
        rows = [served for served in live if served.slot >= 0 or self._free_slots]
        random.shuffle(rows)
        counts: list[tuple[Served, int]] = []
        seats = len(self._free_slots)
        for served in rows[: 1 + int(random.integers(len(rows)))]:
            seats -= served.slot < 0
            if seats < 0:
                break
            missing = len(served.tokens or served.prompt) - served.computed
            counts.append((served, int(random.integers(1, missing + 1))))
        return counts

    def _random_limit(self, served: Served, count: int, random: np.random.Generator, max_drafts: int) -> int:
        """Drafts are for seated rows of one token that reach their end, within what they still want."""
        if served.slot < 0 or count > 1 or served.computed + 1 < len(served.tokens):
            return 0
        return int(random.integers(1 + max(0, min(max_drafts, served.wanted - len(served.output) - 1))))

    def _append(self, served: Served, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> None:
        for place, token in enumerate(tokens):
            served.tokens.append(token)
            served.logprobs.append(logprobs[place] if logprobs else None)
            if token in served.stop_ids:
                served.ended = "stop"
            elif len(served.output) == served.wanted:
                served.ended = "length"
            if served.ended:
                break

    def _seat(self, served: Served) -> SlotStart | None:
        if served.slot >= 0:
            return None
        served.tokens = served.tokens or list(served.prompt)
        served.slot = self._free_slots.pop(0)
        self._epoch += 1
        served.epoch = self._epoch
        served.pages = [[] for _ in self._free_pages]
        return SlotStart(
            served.sampling,
            tuple(served.tokens),
            len(served.prompt),
            served.stop_ids,
            served.grammar,
            served.speculation,
            served.kind,
        )

    def _grow(self, served: Served, end: int) -> None:
        for free, pages in zip(self._free_pages, served.pages, strict=True):
            while len(pages) * self.page_tokens < end:
                pages.append(free.pop(0))
