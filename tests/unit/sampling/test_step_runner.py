"""The runner's contract with the core: faults, grammars, embeddings, groups and reused slots."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from forebay.engine.request import DraftKind, RequestKind, SamplingParams, Speculation
from forebay.engine.runner.executor import StepInputs
from forebay.engine.runner.runner import StepRunner
from forebay.engine.structured.matcher import GrammarFault, Matcher
from runner_drive import RunnerDrive, Served
from script_executor import ScriptExecutor
from speculation_build import PAGE_TOKENS, PAGES, SLOTS, VOCAB, alone, drive, open_toy, scripted_runner
from toy_matcher import BrokenMatcher

GREEDY = SamplingParams()


@pytest.fixture
def runner() -> Iterator[StepRunner]:
    runner = scripted_runner()
    yield runner
    runner.close()


def test_a_broken_grammar_ends_its_row_and_no_other() -> None:
    def open_broken(key: str, _stop_ids: frozenset[int]) -> Matcher:
        if key == "gone":
            raise GrammarFault("the compiled grammar is not in this core")
        return BrokenMatcher(VOCAB, 3)

    runner = scripted_runner(open_grammar=open_broken)
    driver = drive(runner)
    free = Served([1, 2, 3], GREEDY, 8)
    # A greedy row asks for its likeliest token first and may need no mask; a drawn one always does.
    drawn = replace(GREEDY, temperature=0.5)
    breaks, gone = Served([1, 2, 3], drawn, 8, grammar="x"), Served([4, 5], GREEDY, 8, grammar="gone")
    driver.step([(breaks, 3), (free, 3), (gone, 2)])
    while not (free.ended and breaks.ended):
        driver.step([(served, 1) for served in (breaks, free) if not served.ended])
    runner.close()
    assert "not in this core" in gone.ended
    assert "broke down" in breaks.ended
    assert len(breaks.output) == 3
    assert free.output == alone(Served([1, 2, 3], GREEDY, 8))


def test_a_slot_is_whole_again_for_the_request_after_a_fault(runner: StepRunner) -> None:
    driver = drive(runner, slots=1)
    first = Served([4, 5], GREEDY, 8, grammar="unreadable")
    driver.step([(first, 2)])
    assert first.ended.startswith("the grammar cannot be used")
    driver.preempt(first)
    second = Served([1, 2, 3], GREEDY, 4)
    driver.step([(second, 3)])
    assert second.output == alone(second)[:1]


def test_embeddings_and_texts_share_a_step(runner: StepRunner) -> None:
    driver = drive(runner)
    embeds, text = Served([3, 1, 4, 1, 5], GREEDY, 0, kind=RequestKind.EMBED), Served([2, 7, 1], GREEDY, 6)
    driver.step([(embeds, 2), (text, 3)])
    driver.step([(text, 1), (embeds, 3)])
    assert embeds.ended == "embedded"
    assert driver.results[-1].token_counts == (1, 0)
    alone_embeds = Served([3, 1, 4, 1, 5], GREEDY, 0, kind=RequestKind.EMBED)
    driver.step([(alone_embeds, 5)])
    assert driver.results[-1].tokens == ()
    assert alone_embeds.vector == embeds.vector
    assert len(embeds.vector) == 4
    while not text.ended:
        driver.step([(text, 1)])
    assert text.output == alone(text)


def test_layer_groups_have_tables_and_copies_of_their_own() -> None:
    executor = ScriptExecutor(VOCAB, PAGE_TOKENS, groups=2)
    runner = scripted_runner(executor)
    driver = RunnerDrive(runner, SLOTS, PAGES, PAGE_TOKENS, groups=2)
    driver._free_pages[1].reverse()
    served = [Served([place, 2, 3, 4, 5], SamplingParams(1.0, seed=place), 12) for place in range(4)]
    driver.random_run(served, np.random.default_rng(0))
    runner.close()
    assert [one.output for one in served] == [alone(one) for one in served]


def test_copies_run_before_the_step_in_their_group() -> None:
    copying = scripted_runner(ScriptExecutor(VOCAB, PAGE_TOKENS, groups=2))
    driver = RunnerDrive(copying, SLOTS, PAGES, PAGE_TOKENS, groups=2)
    first = Served([5, 6, 7, 8, 9, 10], GREEDY, 3)
    driver.step([(first, 6)])
    second = Served([5, 6, 7, 8, 9, 11], GREEDY, 3)
    plan = driver.plan([(second, 6)], {})
    # The first five tokens come from the other sequence: one page shared by table, one token of the next copied.
    tables = tuple(((first.pages[group][0], second.pages[group][1]),) for group in range(2))
    copies = tuple((group, first.pages[group][1], second.pages[group][1], 1) for group in range(2))

    reused = replace(plan, starts=(5,), counts=(1,), tokens=(11,), page_tables=tables, copies=copies)
    result = copying.launch(reused).result()
    copying.close()
    assert result.fault is None
    assert list(result.tokens) == alone(second)[:1]


class FailingExecutor(ScriptExecutor):
    """Raises in one of its steps."""

    def logits(self, inputs: StepInputs) -> torch.Tensor:
        """Fail in the second step."""
        if len(self.steps) == 1:
            self.steps.append(inputs)
            raise OSError("the device is gone")
        return super().logits(inputs)


def test_whatever_a_step_raises_is_its_result() -> None:
    runner = scripted_runner(FailingExecutor(VOCAB, PAGE_TOKENS))
    driver = drive(runner)
    served = Served([1, 2, 3], GREEDY, 8)
    driver.step([(served, 3)])
    result = runner.launch(driver.plan([(served, 1)], {})).result()
    runner.close()
    assert result.fault is not None
    assert "the device is gone" in result.fault
    assert result.tokens == result.slots == ()


def test_a_kind_of_drafter_that_is_not_there_is_served_plainly() -> None:

    runner = StepRunner(ScriptExecutor(VOCAB, PAGE_TOKENS), SLOTS, 1, {}, open_toy)
    driver = drive(runner)
    served = Served([1, 2, 1, 2], GREEDY, 8, speculation=Speculation(DraftKind.MODEL, 4))
    driver.step([(served, 4)])
    while not served.ended:
        driver.step([(served, 1)], {served.slot: 3})
    runner.close()
    assert served.drafted == 0
    assert served.output == alone(served)
