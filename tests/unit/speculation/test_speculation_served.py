"""Speculation through the real scheduler: prefix reuse, preemption, arrivals, two steps in flight, adaptive limits.

Once over the scripted executor, where a single wrong page or token shows, and once over tiny random models in fp32,
where the draft is the target's first layers or the target itself.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draft_models import truncated_model
from forebay.engine.cpu.support import cpu_problem
from forebay.engine.limits import PoolGroup, SchedulerLimits
from forebay.engine.loader.checkpoint import read_config
from forebay.engine.request import DraftKind, FinishReason, NewRequest, SamplingParams, Speculation
from forebay.engine.runner.build import Drafting, build_runner
from forebay.engine.runner.compute import choose_compute, cpu_features
from forebay.engine.runner.executor import ExecutorSizes
from forebay.engine.runner.runner import StepRunner
from forebay.engine.scheduler import Scheduler
from model_build import save_tiny_llama
from script_executor import ScriptExecutor
from serve_loop import Answers, serve
from speculation_build import PAGE_TOKENS, VOCAB, random_params, scripted_runner

LIMITS = SchedulerLimits(
    groups=(PoolGroup("full", 42),),
    page_tokens=PAGE_TOKENS,
    max_running=6,
    max_waiting=100,
    max_batch_tokens=24,
    max_prompt_tokens=100,
    max_sequence_tokens=140,
)

MODEL_LIMITS = replace(LIMITS, groups=(PoolGroup("full", 11),), page_tokens=16, max_batch_tokens=48)


def requests(random: np.random.Generator, count: int, vocab: int, grammars: bool) -> list[NewRequest]:
    """Random requests, several with a common prefix; none speculates."""
    common = random.integers(0, vocab, 21).tolist()
    made = []
    for request_id in range(count):
        prompt = random.integers(0, vocab, int(random.integers(2, 30))).tolist()
        grammar = ["", "", "", "2/15"][int(random.integers(4))] if grammars else ""
        made.append(
            NewRequest(
                request_id=request_id,
                prompt=tuple(common[: int(random.integers(22))] + prompt),
                sampling=random_params(random),
                max_new_tokens=int(random.integers(5, 40)),
                stop_token_ids=frozenset({0, 1}) if grammar or random.random() < 0.5 else frozenset(),
                ignore_eos=False,
                tenant="",
                priority=0,
                deadline_s=float("inf"),
                grammar=grammar,
            )
        )
    return made


def speculating(made: list[NewRequest], random: np.random.Generator) -> list[NewRequest]:
    """The same requests, two of three with a drafter."""
    kinds = [None, DraftKind.NGRAM, DraftKind.MODEL]
    chosen = [kinds[int(random.integers(3))] for _ in made]
    return [
        replace(new, speculation=None if kind is None else Speculation(kind, 4))
        for new, kind in zip(made, chosen, strict=True)
    ]


def ends(answers: Answers) -> dict[int, tuple[FinishReason, int]]:
    return {name: (end.reason, end.generated_tokens) for name, end in answers.ended.items()}


@pytest.mark.parametrize("seed", range(4))
def test_served_tokens_are_those_of_one_request_at_a_time(seed: int) -> None:
    random = np.random.default_rng(seed)
    made = requests(random, 24, VOCAB, grammars=True)
    alone = scripted_runner()
    expected: dict[int, list[int]] = {}
    for new in made:
        expected |= serve(Scheduler(LIMITS, b"alone"), alone, [new], in_flight=1).tokens
    alone.close()
    runner = scripted_runner()
    plain_scheduler, fast_scheduler = Scheduler(LIMITS, b"plain"), Scheduler(LIMITS, b"fast")
    plain = serve(plain_scheduler, runner, made, steps_between=2)
    fast = serve(fast_scheduler, runner, speculating(made, random), steps_between=2)
    runner.close()
    assert plain.tokens == expected
    assert fast.tokens == expected
    assert ends(plain) == ends(fast)
    load = fast_scheduler.load()
    assert load.preemptions > 0
    assert load.reused_tokens > 0
    assert 0 < load.accepted_tokens < load.drafted_tokens
    reports = [end.speculation for end in fast.ended.values() if end.speculation is not None]
    assert sum(report.accepted for report in reports) == load.accepted_tokens
    assert sum(report.drafted for report in reports) == load.drafted_tokens


def test_good_drafts_take_fewer_steps() -> None:
    new = NewRequest(1, (5, 6, 7), SamplingParams(), 100, frozenset(), True, "", 0, float("inf"))
    runner = scripted_runner(ScriptExecutor(VOCAB, PAGE_TOKENS, whole=0.0))
    plain = serve(Scheduler(LIMITS, b"plain"), runner, [new])
    fast = serve(Scheduler(LIMITS, b"fast"), runner, [replace(new, speculation=Speculation(DraftKind.NGRAM, 6))])
    runner.close()
    assert fast.tokens == plain.tokens
    assert plain.steps == 100
    assert fast.steps < 60


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    target = tmp_path_factory.mktemp("target")
    save_tiny_llama(target)
    draft = truncated_model(target, tmp_path_factory.mktemp("draft"), layers=2)
    return {"target": target, "truncated": draft, "itself": target}


PATHS = ["torch fp32", "cpu bf16", "cpu int8"]


@pytest.fixture(params=[(draft, path) for draft in ("truncated", "itself") for path in PATHS], ids=" ".join)
def model_runner(folders: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[tuple[str, StepRunner]]:
    draft, (kernels, dtype) = request.param[0], request.param[1].split()
    folder = folders["target"]
    config, features = read_config(folder), cpu_features()
    problem = cpu_problem(config, features, dtype, MODEL_LIMITS.page_tokens)
    if kernels == "cpu" and problem:
        pytest.skip(problem)
    sizes = ExecutorSizes((MODEL_LIMITS.groups[0].pages,), MODEL_LIMITS.page_tokens, 6, 48, threads=1)
    compute = choose_compute(dtype, features, kernels)
    runner = build_runner(folder, config, compute, sizes, Drafting(model=folders[draft]))
    yield draft, runner
    runner.close()


def test_tiny_models_give_the_same_tokens_with_and_without_drafts(model_runner: tuple[str, StepRunner]) -> None:
    name, runner = model_runner
    random = np.random.default_rng(5)
    made = requests(random, 14, 512, grammars=False)
    expected: dict[int, list[int]] = {}
    for new in made:
        expected |= serve(Scheduler(MODEL_LIMITS, b"alone"), runner, [new], in_flight=1).tokens
    scheduler = Scheduler(MODEL_LIMITS, b"fast")
    fast = serve(scheduler, runner, speculating(made, random))
    assert fast.tokens == expected
    load = scheduler.load()
    # A draft that is always right ends sequences before they fill the pages.
    assert load.preemptions > 0 or name == "itself"
    assert load.drafted_tokens >= load.accepted_tokens > (20 if name == "itself" else 0)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_model_that_drafts_for_itself_is_right_whenever_it_drafts(
    model_runner: tuple[str, StepRunner], temperature: float
) -> None:
    name, runner = model_runner
    prompt = tuple(np.random.default_rng(1).integers(0, 512, 40).tolist())
    sampling = SamplingParams(temperature, top_k=40, seed=8)
    new = NewRequest(1, prompt, sampling, 60, frozenset(), True, "", 0, float("inf"))
    plain = serve(Scheduler(MODEL_LIMITS, b"plain"), runner, [new])
    fast = serve(Scheduler(MODEL_LIMITS, b"fast"), runner, [replace(new, speculation=Speculation(DraftKind.MODEL, 4))])
    report = fast.ended[1].speculation
    assert fast.tokens == plain.tokens
    assert report is not None
    if name == "itself":
        assert report.accepted == report.drafted > 30
    else:
        assert report.accepted < report.drafted
