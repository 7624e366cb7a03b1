"""Drafts under real grammars: the same answer with and without, legal to the end, preempted or not."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest

from eventually import eventually
from forebay.engine.request import DraftKind, SamplingParams, Speculation
from forebay.engine.runner.runner import StepRunner
from forebay.engine.structured.compile import compile_source
from forebay.engine.structured.store import GrammarStore
from grammar_walk import Walker, schema_source
from runner_drive import Served
from script_executor import ScriptExecutor
from speculation_build import PAGE_TOKENS, drive, scripted_runner

SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 2,
    "maxItems": 3,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "done": {"type": "boolean"}},
        "required": ["name", "done"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def walker() -> Walker:
    return Walker.small()


@pytest.fixture(scope="module", params=["llguidance", "xgrammar"])
def store(walker: Walker, request: pytest.FixtureRequest) -> Iterator[GrammarStore]:
    compiled = compile_source(schema_source(SCHEMA, backend=request.param), walker.vocabulary)
    store = GrammarStore(lambda: walker.vocabulary)
    store.put("list", compiled.backend, compiled.payload)
    assert eventually(store.finished, 30.0, "the grammar is built", 0.05) == [("list", "")]
    assert compiled.backend == request.param
    yield store
    store.close()


def runner(walker: Walker, store: GrammarStore) -> StepRunner:
    size = walker.vocabulary.size
    target, small = (ScriptExecutor(size, PAGE_TOKENS, whole=whole) for whole in (0.1, 0.0))
    return scripted_runner(target, small, store.open)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
@pytest.mark.parametrize("kind", DraftKind)
def test_a_structured_answer_is_the_same_with_drafts(
    walker: Walker, store: GrammarStore, kind: DraftKind, temperature: float
) -> None:
    prompt = walker.codec.encode_text('[{"name": "ab", "done": true}, {"name": "id", "done": false}]')
    answers: list[list[list[int]]] = []
    for speculation in (None, Speculation(kind, 4)):
        served = [
            Served(prompt, SamplingParams(temperature, seed=seed), 200, frozenset({walker.end}), "list", speculation)
            for seed in range(5)
        ]
        runs = runner(walker, store)
        drive(runs).random_run(served, np.random.default_rng(1), max_drafts=4)
        runs.close()
        answers.append([one.output for one in served])
    assert answers[0] == answers[1]
    # A draft model that knows nothing of the grammar seldom proposes what it allows.
    assert sum(one.accepted for one in served) > 0 or kind is DraftKind.MODEL
    for one in served:
        assert one.ended == "stop"
        jsonschema.validate(json.loads(walker.codec.decode(one.output[:-1])), SCHEMA)
