"""A runner without a model, whose tokens depend on every token before them through the KV pages it was given.

Each KV cell holds a rolling hash of the whole sequence up to its position, read back through the page tables. A
wrong page table, a page reused too early, a bad copy or a lost token therefore changes the tokens, and
`sequential_tokens` says what they must be. Used by the scheduler's tests and, in-process, by tests of the core loop.
"""

from collections.abc import Sequence

from forebay.engine.plan import TOKEN_ON_DEVICE, StepPlan, StepResult
from forebay.engine.request import NewRequest, SamplingParams

_MODULUS = (1 << 61) - 1


def next_hash(before: int, token: int) -> int:
    """Rolling hash of a sequence that had hash `before` and got `token`."""
    return (before * 1_000_003 + token + 1) % _MODULUS


def sample_token(state: int, sampling: SamplingParams, vocabulary: int) -> int:
    """The token after a sequence with hash `state`."""
    return (state ^ sampling.seed) * 2_654_435_761 % _MODULUS % vocabulary


def sequential_tokens(request: NewRequest, vocabulary: int) -> list[int]:
    """What `request` gets when it runs alone to its end, without its stop token."""
    state = 0
    for token in request.prompt:
        state = next_hash(state, token)
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


class ScriptRunner:
    """Runs plans at launch, in order. From step number `fault_step` on, when given, every step fails."""

    def __init__(self, page_tokens: int, vocabulary: int, fault_step: int | None = None) -> None:
        self.vocabulary = vocabulary
        self.plans: list[StepPlan] = []
        self._page_tokens = page_tokens
        self._fault_step = fault_step
        self._cells: dict[tuple[int, int], int] = {}
        self._last_token: dict[int, int] = {}
        self._sampling: dict[int, SamplingParams] = {}

    def launch(self, plan: StepPlan) -> ScriptHandle:
        """Compute `plan` now."""
        self.plans.append(plan)
        if self._fault_step is not None and plan.step >= self._fault_step:
            return ScriptHandle(StepResult.failed(plan.step, "scripted fault"))
        for _, source, target, tokens in plan.copies:
            for offset in range(tokens):
                self._cells[target, offset] = self._cells[source, offset]
        sampled: list[tuple[int, int, int]] = []
        flat = 0
        for row, slot in enumerate(plan.slots):
            fresh = plan.fresh[row]
            if fresh is not None:
                self._sampling[slot] = fresh.sampling
            inputs = plan.tokens[flat : flat + plan.counts[row]]
            flat += plan.counts[row]
            state = self._compute(slot, plan.starts[row], inputs, plan.page_tables[0][row])
            if plan.samples[row]:
                token = sample_token(state, self._sampling[slot], self.vocabulary)
                sampled.append((slot, plan.epochs[row], token))
        for slot, _, token in sampled:
            self._last_token[slot] = token
        slots, epochs, tokens_out = zip(*sampled, strict=True) if sampled else ((), (), ())
        return ScriptHandle(StepResult.plain(plan.step, tuple(slots), tuple(epochs), tuple(tokens_out)))

    def close(self) -> None:
        """Nothing to stop."""

    def _compute(self, slot: int, start: int, inputs: Sequence[int], table: Sequence[int]) -> int:
        size = self._page_tokens
        state = 0 if start == 0 else self._cells[table[(start - 1) // size], (start - 1) % size]
        for position, token in enumerate(inputs, start):
            known = self._last_token[slot] if token == TOKEN_ON_DEVICE else token
            state = next_hash(state, known)
            self._cells[table[position // size], position % size] = state
        return state
