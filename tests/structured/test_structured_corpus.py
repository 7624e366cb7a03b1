"""Every schema of the corpus at temperature 0, 1 and 2: each walk ends by itself, and every answer validates."""

import json
from typing import Any

import jsonschema
import pytest

from grammar_walk import Walker, schema_source
from schema_corpus import CORPUS

WALKS = {0.0: 4, 1.0: 4, 2.0: 4}


@pytest.fixture(scope="module")
def walker() -> Walker:
    return Walker.small()


def test_the_corpus_has_two_hundred_schemas() -> None:
    assert len(CORPUS) >= 200
    assert len({json.dumps(schema) for schema in CORPUS.values()}) == len(CORPUS)


@pytest.mark.parametrize("name", CORPUS)
def test_every_walk_ends_and_validates(walker: Walker, name: str) -> None:
    schema: Any = CORPUS[name]
    open_matcher = walker.open(schema_source(schema))
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    for temperature, walks in WALKS.items():
        for seed in range(walks):
            text = walker.walk(open_matcher(), temperature, seed)
            validator.validate(json.loads(text))
