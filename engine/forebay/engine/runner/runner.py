"""Runs step plans: copies, drafts, inputs, one forward pass, sampling.

`launch` hands the plan to one worker thread and returns at once, so the core loop does its input and output meanwhile
and may launch the next step before this one's tokens are known. Steps run strictly in launch order. A step that raises
ends as a `StepResult` with a fault, a sequence that cannot go on as a fault of its row; the core decides what either
means. Drafts are verified by choosing at every position, so they never change a token.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from forebay.engine.plan import StepPlan, StepResult
from forebay.engine.request import DraftKind
from forebay.engine.runner.choice import Chooser, Chosen
from forebay.engine.runner.executor import Executor, IntArray, StepInputs, TableArray
from forebay.engine.runner.inputs import rows_of, step_inputs
from forebay.engine.runner.slots import OpenGrammar, SlotTable
from forebay.engine.speculation.drafter import Drafter, DraftRow
from forebay.engine.speculation.speculator import Speculator
from forebay.engine.structured.matcher import GrammarFault, Matcher


class LaunchedStep:
    """A step that was launched."""

    def __init__(self, future: "Future[StepResult]") -> None:
        self._future = future

    def done(self) -> bool:
        """Whether `result` would return at once."""
        return self._future.done()

    def result(self) -> StepResult:
        """The step's outcome; waits for it."""
        return self._future.result()


def no_grammar(key: str, _stop_ids: frozenset[int]) -> Matcher:
    """Stands where an engine has no grammars."""
    raise GrammarFault(f"there is no grammar {key!r}")


class StepRunner:
    """One executor, its slots and its drafters behind the scheduler's `Runner` protocol."""

    def __init__(
        self,
        executor: Executor,
        max_running: int,
        threads: int,
        drafters: Mapping[DraftKind, Drafter] | None = None,
        open_grammar: OpenGrammar = no_grammar,
    ) -> None:
        """`open_grammar` is called on the worker thread. Drafters follow only rows that ask for their kind."""
        self._executor = executor
        self._slots = SlotTable(max_running, executor.vocab, open_grammar)
        self._chooser = Chooser(self._slots, executor.vocab)
        self._speculator = Speculator(drafters or {})
        self._worker = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="step", initializer=torch.set_num_threads, initargs=(threads,)
        )

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Queue `plan` behind the steps already launched."""
        return LaunchedStep(self._worker.submit(self._run, plan))

    def close(self) -> None:
        """Finish the steps in flight and stop the worker thread."""
        self._worker.shutdown(wait=True)

    def _run(self, plan: StepPlan) -> StepResult:
        try:
            with torch.inference_mode():
                return self._execute(plan)
        except Exception as error:  # noqa: BLE001 - the contract of a launched step: whatever fails is its result
            return StepResult.failed(plan.step, f"step {plan.step}: {type(error).__name__}: {error}")

    def _execute(self, plan: StepPlan) -> StepResult:
        self._copy(plan)
        for slot, fresh in zip(plan.slots, plan.fresh, strict=True):
            if fresh is not None:
                self._slots.start(slot, fresh)
                self._speculator.start(slot, fresh)
        slots = np.array(plan.slots, dtype=np.int64)
        tables = self._slots.tables(slots, plan.page_tables)
        drafts = self._drafts(plan, tables)
        known = self._slots.fill_tokens(np.array(plan.tokens, dtype=np.int64), np.repeat(slots, plan.counts))
        inputs = step_inputs(plan, known, drafts, tables)
        return self._outcome(plan, slots, inputs, drafts)

    def _copy(self, plan: StepPlan) -> None:
        for group in sorted({copy[0] for copy in plan.copies}):
            self._executor.copy_rows(group, [copy[1:] for copy in plan.copies if copy[0] == group])

    def _drafts(self, plan: StepPlan, tables: tuple[TableArray, ...]) -> list[list[int]]:
        """What each row verifies in this step: the legal part of what its drafter proposes."""
        drafts: list[list[int]] = [[] for _ in plan.slots]
        served = [row for row, slot in enumerate(plan.slots) if self._speculator.serves(slot)]
        served = [row for row in served if self._slots.fault(plan.slots[row]) is None]
        if served:
            proposals = self._speculator.propose([self._draft_row(plan, row, tables) for row in served])
            for row, proposed in zip(served, proposals, strict=True):
                drafts[row] = self._legal(plan.slots[row], proposed)
        return drafts

    def _legal(self, slot: int, proposed: list[int]) -> list[int]:
        try:
            return proposed[: self._slots.row(slot).legal_prefix(proposed)]
        except GrammarFault as error:
            self._slots.fail(slot, error.message)
            return []

    def _draft_row(self, plan: StepPlan, row: int, tables: tuple[TableArray, ...]) -> DraftRow:
        slot = plan.slots[row]
        return DraftRow(
            slot=slot,
            limit=plan.draft_limits[row],
            covered=plan.starts[row] + plan.counts[row],
            tables=tuple(table[row] for table in tables),
            params=self._slots.row(slot).params,
            prefill=plan.counts[row] > 1,
        )

    def _outcome(self, plan: StepPlan, slots: IntArray, inputs: StepInputs, drafts: list[list[int]]) -> StepResult:
        """Compute `inputs` and choose the tokens of the rows that sample."""
        sampled = np.flatnonzero(plan.samples)
        embeds = self._slots.embeds(slots)
        vectors: tuple[tuple[int, tuple[float, ...]], ...] = ()
        answered = sampled
        if embeds.any():
            vectors = self._embed(inputs, slots, np.flatnonzero(embeds), sampled)
            answered = sampled[~embeds[sampled]]
            inputs = rows_of(inputs, np.flatnonzero(~embeds))
        chosen = Chosen([], [], [], [])
        if len(inputs.counts):
            logits = self._executor.logits(inputs).numpy()
            row_drafts = [drafts[row] for row in answered]
            chosen = self._chooser.choose(logits, slots[answered], inputs.positions[inputs.sampled] + 1, row_drafts)
            self._keep(slots[answered], chosen)
        places = np.searchsorted(sampled, answered)
        counts = np.zeros(len(sampled), dtype=np.int64)
        counts[places] = chosen.counts
        return StepResult(
            step=plan.step,
            slots=tuple(slots[sampled].tolist()),
            epochs=tuple([plan.epochs[row] for row in sampled]),
            token_counts=tuple(counts.tolist()),
            tokens=tuple(chosen.tokens),
            drafted=tuple([len(drafts[row]) for row in sampled]),
            logprobs=tuple(chosen.logprobs),
            vectors=vectors,
            faults=tuple([(int(places[index]), message) for index, message in chosen.faults]),
        )

    def _embed(
        self, inputs: StepInputs, slots: IntArray, rows: IntArray, sampled: IntArray
    ) -> tuple[tuple[int, tuple[float, ...]], ...]:
        """(slot, vector) of those of `rows`, which want an embedding, that reach their last token."""
        vectors = self._executor.hidden(rows_of(inputs, rows)).tolist()
        return tuple(zip(slots[np.intersect1d(rows, sampled)].tolist(), map(tuple, vectors), strict=True))

    def _keep(self, slots: IntArray, chosen: Chosen) -> None:
        """Take over the chosen tokens into the slots and their drafters."""
        counts = np.array(chosen.counts, dtype=np.int64)
        ends = np.cumsum(counts)
        some = np.flatnonzero(counts)
        self._slots.remember(slots[some], np.array(chosen.tokens, dtype=np.int64)[ends[some] - 1])
        for slot, count, end in zip(slots.tolist(), chosen.counts, ends.tolist(), strict=True):
            if count and self._speculator.serves(slot):
                self._speculator.extend(slot, chosen.tokens[end - count : end])
