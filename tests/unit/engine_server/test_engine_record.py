"""Records of answers, and where two runs part."""

from dataclasses import replace
from typing import Any

import pytest

from forebay.contract.errors import InvalidSpec
from forebay.engine.record import BatchPlan, Candidate, Identity, check_record, compare, make_record

IDENTITY = Identity("m", "t", "c", "d", {"dtype": "bf16"})
CANDIDATE = Candidate(0, 7, (1, 2, 3), "length", None)


def record(candidate: Candidate = CANDIDATE, identity: Identity = IDENTITY, prompt: int = 5) -> dict[str, Any]:
    """A record of one answer, as JSON gives it back."""
    body = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    made = make_record(identity, ("/v1/completions", body), [[prompt]], "", [candidate], BatchPlan(0, 1, 0, 0, 0, 512))
    made["candidates"][0]["output_ids"] = list(made["candidates"][0]["output_ids"])
    return made


def test_a_record_repeats_its_request_whole_and_with_its_seed() -> None:
    assert record()["request"]["body"] == {"model": "m", "stream": False, "seed": 7, "forebay_record": True}
    assert check_record({"choices": [], "forebay_record": record()}) == record()


def test_equal_runs_agree_and_differences_say_where() -> None:
    assert compare(record(), record()) == compare(record(), record(identity=IDENTITY))
    assert compare(record(), record()).partings == ()
    other = compare(record(), record(replace(CANDIDATE, output_ids=(1, 9, 3)), replace(IDENTITY, model_digest="x")))
    assert other.partings == ("answer 0: tokens part at 1: 2 became 9",)
    assert other.differences == ("model_digest: m became x",)
    shorter = compare(record(), record(replace(CANDIDATE, output_ids=(1, 2))))
    assert shorter.partings == ("answer 0: the first 2 tokens agree, 3 tokens became 2",)
    assert compare(record(), record(replace(CANDIDATE, finish_reason="stop"))).partings
    assert compare(record(), record(prompt=6)).partings == ("prompt 0: tokens part at 0: 5 became 6",)


@pytest.mark.parametrize("document", [[], {}, {"version": 2}, {"version": 1, "request": 3}])
def test_what_is_no_record_is_refused(document: Any) -> None:
    with pytest.raises(InvalidSpec):
        check_record(document)
