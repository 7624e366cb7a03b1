"""The drafter over a second model: catching up within a budget, keeping what came true, and what it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader.checkpoint import read_config
from forebay.engine.request import DraftKind, SamplingParams, Speculation
from forebay.engine.runner.build import Drafting, build_runner
from forebay.engine.runner.compute import choose_compute, cpu_features
from forebay.engine.runner.executor import ExecutorSizes
from forebay.engine.speculation.draft_model import ModelDrafter
from forebay.engine.speculation.drafter import DraftRow
from model_build import save_tiny
from runner_drive import Served
from script_executor import ScriptExecutor
from speculation_build import PAGE_TOKENS, VOCAB, alone, drive, scripted_runner

TABLE = np.arange(30, dtype=np.int32)


def row(slot: int, limit: int, covered: int, prefill: bool = False, first_page: int = 0) -> DraftRow:
    return DraftRow(slot, limit, covered, (TABLE + first_page,), SamplingParams(), prefill)


def computed(executor: ScriptExecutor) -> list[int]:
    """Tokens of each forward pass so far."""
    return [len(step.tokens) for step in executor.steps]


def test_a_long_text_is_caught_up_in_pieces_and_only_then_drafted_for() -> None:
    executor = ScriptExecutor(VOCAB, PAGE_TOKENS)
    drafter = ModelDrafter(executor, (0,), catch_up_tokens=8)
    drafter.start(1, list(range(20)))
    found = [drafter.propose([row(1, 2, 20)])[0] for _ in range(3)]
    assert [len(tokens) for tokens in found] == [0, 0, 2]
    assert computed(executor) == [8, 8, 4, 1]


def test_prompt_chunks_are_followed_as_far_as_they_have_pages() -> None:
    executor = ScriptExecutor(VOCAB, PAGE_TOKENS)
    drafter = ModelDrafter(executor, (0,), catch_up_tokens=100)
    drafter.start(1, list(range(20)))
    assert drafter.propose([row(1, 0, 12, prefill=True)]) == [[]]
    assert computed(executor) == [12]


def test_a_row_that_rests_costs_nothing() -> None:
    executor = ScriptExecutor(VOCAB, PAGE_TOKENS)
    drafter = ModelDrafter(executor, (0,), catch_up_tokens=100)
    drafter.start(1, list(range(20)))
    drafter.propose([row(1, 1, 20)])
    before = len(executor.steps)
    for token in range(5):
        drafter.extend(1, [token])
        assert drafter.propose([row(1, 0, 21 + token)]) == [[]]
    assert len(executor.steps) == before
    drafter.propose([row(1, 1, 25)])
    assert computed(executor)[-1] == 5


def test_proposals_that_came_true_are_not_computed_again() -> None:
    executor = ScriptExecutor(VOCAB, PAGE_TOKENS)
    drafter = ModelDrafter(executor, (0,), catch_up_tokens=100)
    drafter.start(1, list(range(10)))
    (tokens,) = drafter.propose([row(1, 4, 10)])
    drafter.extend(1, [*tokens[:2], (tokens[2] + 1) % VOCAB])
    drafter.propose([row(1, 1, 13)])
    assert computed(executor)[-1] == 1, "two proposals have KV; the token that differed is new"
    (tokens,) = drafter.propose([row(1, 3, 13)])
    drafter.extend(1, [*tokens, 5])
    drafter.propose([row(1, 1, 17)])
    assert computed(executor)[-1] == 2, "the last proposal was never computed"


def test_rows_of_different_lengths_and_limits_share_its_passes() -> None:
    executor = ScriptExecutor(VOCAB, PAGE_TOKENS)
    drafter = ModelDrafter(executor, (0,), catch_up_tokens=100)
    alone_executor = ScriptExecutor(VOCAB, PAGE_TOKENS)
    alone_drafter = ModelDrafter(alone_executor, (0,), catch_up_tokens=100)
    rows = [row(slot, limit, 5 + slot, first_page=10 * slot) for slot, limit in ((0, 3), (1, 0), (2, 1), (3, 4))]
    for one in rows:
        drafter.start(one.slot, list(range(5 + one.slot)))
        alone_drafter.start(one.slot, list(range(5 + one.slot)))
    assert drafter.propose(rows) == [alone_drafter.propose([one])[0] for one in rows]
    assert [len(step.counts) for step in executor.steps] == [3, 2, 2, 1]


def test_a_slot_that_speculates_no_more_is_forgotten() -> None:
    runner = scripted_runner()
    driver = drive(runner, slots=1)
    for speculation in (Speculation(DraftKind.MODEL, 3), None, Speculation(DraftKind.NGRAM, 3)):
        served = Served([1, 2, 3, 1, 2], SamplingParams(1.0, seed=2), 9, speculation=speculation)
        driver.step([(served, 5)])
        while not served.ended:
            driver.step([(served, 1)], {served.slot: 2})
        driver.preempt(served)
        assert served.output == alone(served)
        assert bool(served.drafted) >= (speculation is not None and speculation.kind is DraftKind.MODEL)
    runner.close()


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"vocab_size": 500}, "share a tokenizer"),
        ("llama", {"max_position_embeddings": 256}, "takes 256 positions"),
        ("gemma3", {}, "full attention"),
    ],
)
def test_a_draft_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, family: str, changes: dict[str, Any], message: str
) -> None:
    target, draft = tmp_path / "target", tmp_path / "draft"
    save_tiny("llama", target)
    save_tiny(family, draft, **changes)
    sizes = ExecutorSizes((20,), 16, 4, 64, threads=1)
    with pytest.raises(InvalidSpec, match=message) as refusal:
        build_runner(target, read_config(target), choose_compute("fp32", cpu_features()), sizes, Drafting(model=draft))
    assert refusal.value.field == "draft_model"
