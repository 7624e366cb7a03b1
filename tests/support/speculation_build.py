"""Builders for runners over scripted executors, and mixed sets of sequences to serve."""

import numpy as np

from forebay.engine.request import DraftKind, SamplingParams, Speculation
from forebay.engine.runner.executor import Executor
from forebay.engine.runner.runner import StepRunner, no_grammar
from forebay.engine.runner.slots import OpenGrammar
from forebay.engine.speculation.draft_model import ModelDrafter
from forebay.engine.speculation.drafter import Drafter
from forebay.engine.speculation.ngram import NgramDrafter
from forebay.engine.structured.matcher import Matcher
from runner_drive import RunnerDrive, Served
from script_executor import ScriptExecutor
from toy_matcher import ToyMatcher

VOCAB = 40
PAGE_TOKENS = 4
PAGES = 400
SLOTS = 6


def open_toy(key: str, _stop_ids: frozenset[int]) -> Matcher:
    """A toy matcher from a key "classes/length"."""
    classes, length = map(int, key.split("/"))
    return ToyMatcher(VOCAB, classes, length)


def scripted_runner(
    executor: Executor | None = None,
    draft: Executor | None = None,
    open_grammar: OpenGrammar = open_toy,
    slots: int = SLOTS,
) -> StepRunner:
    """A runner over scripted executors; `draft` defaults to another script, so that some drafts are right."""
    target = executor or ScriptExecutor(VOCAB, PAGE_TOKENS)
    small = draft or ScriptExecutor(VOCAB, PAGE_TOKENS, whole=0.0)
    drafters: dict[DraftKind, Drafter] = {
        DraftKind.NGRAM: NgramDrafter(),
        DraftKind.MODEL: ModelDrafter(small, (0,), catch_up_tokens=16),
    }
    return StepRunner(target, slots, 1, drafters, open_grammar)


def plain_runner(executor: Executor) -> StepRunner:
    """A runner without drafters or grammars."""
    return StepRunner(executor, SLOTS, 1, {}, no_grammar)


def drive(runner: StepRunner, slots: int = SLOTS) -> RunnerDrive:
    """A drive over `runner` with the sizes of this module."""
    return RunnerDrive(runner, slots, PAGES, PAGE_TOKENS)


def alone(served: Served, runner: StepRunner | None = None) -> list[int]:
    """What the sequence gets when it runs by itself, one token a step."""
    runner = runner or scripted_runner()
    copy = Served(served.prompt, served.sampling, served.wanted, served.stop_ids, served.grammar)
    driver = drive(runner)
    driver.step([(copy, len(copy.prompt))])
    while not copy.ended:
        driver.step([(copy, 1)])
    runner.close()
    return copy.output


def random_params(random: np.random.Generator) -> SamplingParams:
    """Parameters of every kind, often at their defaults."""

    def pick(*values: float) -> float:
        return float(random.choice(values))

    return SamplingParams(
        temperature=pick(0.0, 0.0, 0.7, 1.0, 1.6),
        top_k=int(pick(0, 0, 5, 1)),
        top_p=pick(1.0, 1.0, 0.8),
        min_p=pick(0.0, 0.0, 0.1),
        repetition_penalty=pick(1.0, 1.0, 1.3),
        presence_penalty=pick(0.0, 0.0, 0.4),
        frequency_penalty=pick(0.0, 0.0, 0.3),
        logit_bias=((3, 2.0), (7, -4.0)) if random.random() < 0.3 else (),
        top_logprobs=[None, None, 0, 3][int(random.integers(4))],
        min_tokens=int(pick(0, 0, 5)),
        seed=int(random.integers(2**63)),
    )


def random_sequences(random: np.random.Generator, count: int, speculating: bool) -> list[Served]:
    """Sequences with random parameters, stop tokens, grammars and drafters."""
    sequences = []
    for _ in range(count):
        kind = [None, DraftKind.NGRAM, DraftKind.MODEL][int(random.integers(3))] if speculating else None
        grammar = ["", "", "2/15", "3/9"][int(random.integers(4))]
        sequences.append(
            Served(
                prompt=random.integers(0, VOCAB, int(random.integers(2, 30))).tolist(),
                sampling=random_params(random),
                wanted=int(random.integers(5, 30)),
                stop_ids=frozenset({0, 1}) if grammar or random.random() < 0.5 else frozenset(),
                grammar=grammar,
                speculation=None if kind is None else Speculation(kind, 5),
            )
        )
    return sequences
