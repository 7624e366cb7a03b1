"""A runner without a model, whose tokens depend on every token before them through the KV pages it was given.

Each KV cell holds a rolling hash of the whole sequence up to its position, read back through the page tables. A
wrong page table, a page reused too early, a bad copy or a lost token therefore changes the tokens, and
`sequential_tokens` says what they must be. With several layer groups every position that a group's window shows must
agree with what was written, so a page freed too early is found at once. Drafts are right with a given probability;
wrong ones leave their garbage in the pages, as a model would. Used by the scheduler's tests and, in-process, by tests
of the core loop.
"""

import random
from collections.abc import Sequence

from forebay.engine.plan import TOKEN_ON_DEVICE, StepPlan, StepResult, TokenLogprobs
from forebay.engine.request import NewRequest, RequestKind, SamplingParams, SlotStart

_MODULUS = (1 << 61) - 1
BROKEN_GRAMMAR = "broken"
"""Rows with this grammar key get a fault instead of their token."""


def next_hash(before: int, token: int) -> int:
    """Rolling hash of a sequence that had hash `before` and got `token`."""
    return (before * 1_000_003 + token + 1) % _MODULUS


def sample_token(state: int, sampling: SamplingParams, vocabulary: int) -> int:
    """The token after a sequence with hash `state`."""
    return (state ^ sampling.seed) * 2_654_435_761 % _MODULUS % vocabulary


def logprobs_of(token: int) -> TokenLogprobs:
    """What the runner says of a token whose request wants log probabilities."""
    return TokenLogprobs(-token / 8, ((token, -token / 8), (0, -100.0)))


def prompt_hash(prompt: Sequence[int]) -> int:
    """Hash of a whole prompt; its float is the vector of a request that embeds."""
    state = 0
    for token in prompt:
        state = next_hash(state, token)
    return state


def sequential_tokens(request: NewRequest, vocabulary: int) -> list[int]:
    """What `request` gets when it runs alone to its end, without its stop token."""
    state = prompt_hash(request.prompt)
    tokens: list[int] = []
    while len(tokens) < request.max_new_tokens:
        token = sample_token(state, request.sampling, vocabulary)
        if token in request.stop_token_ids and not request.ignore_eos:
            break
        tokens.append(token)
        state = next_hash(state, token)
    return tokens


class ScriptHandle:
    """A step whose result is known."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def done(self) -> bool:
        """Always: the step ran at launch."""
        return True

    def result(self) -> StepResult:
        """The step's outcome."""
        return self._result


class _Collected:
    """The arrays of a result while it is built."""

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.epochs: list[int] = []
        self.counts: list[int] = []
        self.tokens: list[int] = []
        self.drafted: list[int] = []
        self.logprobs: list[TokenLogprobs | None] = []
        self.vectors: list[tuple[int, tuple[float, ...]]] = []
        self.faults: list[tuple[int, str]] = []

    def result(self, step: int) -> StepResult:
        """The result of a step that went well."""
        return StepResult(
            step=step,
            slots=tuple(self.slots),
            epochs=tuple(self.epochs),
            token_counts=tuple(self.counts),
            tokens=tuple(self.tokens),
            drafted=tuple(self.drafted),
            logprobs=tuple(self.logprobs) if any(self.logprobs) else (),
            vectors=tuple(self.vectors),
            faults=tuple(self.faults),
        )


class ScriptRunner:
    """Runs plans at launch, in order. From step number `fault_step` on, when given, every step fails.

    `windows` are the window tokens of each layer group. A drafted token is right with probability `acceptance`, and a
    row drafts fewer tokens than it may with probability `1 - eagerness`.
    """

    def __init__(
        self,
        page_tokens: int,
        vocabulary: int,
        fault_step: int | None = None,
        windows: Sequence[int] = (0,),
        acceptance: float = 0.5,
        eagerness: float = 1.0,
    ) -> None:
        self.vocabulary = vocabulary
        self.plans: list[StepPlan] = []
        self.acceptance = acceptance
        self._eagerness = eagerness
        self._page_tokens = page_tokens
        self._fault_step = fault_step
        self._windows = tuple(windows)
        self._cells: dict[tuple[int, int, int], int] = {}
        self._last_token: dict[int, int] = {}
        self._starts: dict[int, SlotStart] = {}
        self._random = random.Random(1)

    def launch(self, plan: StepPlan) -> ScriptHandle:
        """Compute `plan` now."""
        self.plans.append(plan)
        if self._fault_step is not None and plan.step >= self._fault_step:
            return ScriptHandle(StepResult.failed(plan.step, "scripted fault"))
        self._copy(plan)
        collected, flat, last_tokens = _Collected(), 0, dict(self._last_token)
        for row, (slot, count) in enumerate(zip(plan.slots, plan.counts, strict=True)):
            fresh = plan.fresh[row]
            if fresh is not None:
                self._starts[slot] = fresh
            inputs = plan.tokens[flat : flat + count]
            known = [last_tokens[slot] if token == TOKEN_ON_DEVICE else token for token in inputs]
            flat += count
            state = self._compute(plan, row, plan.starts[row], known)
            if plan.samples[row]:
                self._sample(plan, row, state, collected)
        return ScriptHandle(collected.result(plan.step))

    def _copy(self, plan: StepPlan) -> None:
        for group, source, target, tokens in plan.copies:
            for offset in range(tokens):
                self._cells[group, target, offset] = self._cells[group, source, offset]

    def close(self) -> None:
        """Nothing to stop."""

    def _sample(self, plan: StepPlan, row: int, state: int, collected: _Collected) -> None:
        slot, start = plan.slots[row], self._starts[plan.slots[row]]
        collected.slots.append(slot)
        collected.epochs.append(plan.epochs[row])
        run: list[int] = []
        drafted = 0
        if start.kind is RequestKind.EMBED:
            collected.vectors.append((slot, (float(state),)))
        elif start.grammar == BROKEN_GRAMMAR:
            collected.faults.append((len(collected.slots) - 1, "the grammar broke"))
            self._last_token[slot] = 0
        else:
            run, drafted = self._draft(plan, row, state, start.sampling)
            self._last_token[slot] = run[-1]
        collected.counts.append(len(run))
        collected.tokens += run
        collected.drafted.append(drafted)
        wanted = start.sampling.top_logprobs is not None
        collected.logprobs += [logprobs_of(token) if wanted else None for token in run]

    def _draft(self, plan: StepPlan, row: int, state: int, sampling: SamplingParams) -> tuple[list[int], int]:
        """Draft, verify and write as many tokens as the row may; returns the new tokens and how many were drafted."""
        limit, choose = plan.draft_limits[row], self._random
        drafted = limit if choose.random() < self._eagerness else choose.randint(0, limit)
        position = plan.starts[row] + plan.counts[row]
        run = [sample_token(state, sampling, self.vocabulary)]
        right, written = True, state
        for offset in range(drafted):
            hit = choose.random() < self.acceptance
            guess = run[-1] if right and hit else (run[-1] + 1) % self.vocabulary
            right = right and hit
            written = self._compute(plan, row, position + offset, (guess,), before=written)
            if right:
                run.append(sample_token(written, sampling, self.vocabulary))
        return run, drafted

    def _compute(self, plan: StepPlan, row: int, start: int, inputs: Sequence[int], before: int | None = None) -> int:
        """Write the cells of `inputs` from position `start` on; returns the hash after the last."""
        tables = [tables[row] for tables in plan.page_tables]
        state = before if before is not None else self._read(0, tables[0], start - 1) if start else 0
        for position, token in enumerate(inputs, start):
            state = next_hash(state, token)
            for group, table in enumerate(tables):
                self._cells[group, table[position // self._page_tokens], position % self._page_tokens] = state
        self._check_windows(tables, start, start + len(inputs) - 1)
        return state

    def _check_windows(self, tables: Sequence[Sequence[int]], first: int, last: int) -> None:
        """Every position that these tokens see must hold in each group what the first group holds."""
        for group, window in enumerate(self._windows):
            for position in range(max(0, first - window + 1) if window else 0, last + 1):
                seen = self._read(group, tables[group], position)
                if self._windows[0] == 0:
                    assert seen == self._read(0, tables[0], position), "a page in the window was lost"

    def _read(self, group: int, table: Sequence[int], position: int) -> int:
        return self._cells[group, table[position // self._page_tokens], position % self._page_tokens]
