"""Reproducibility records: what made an answer, and whether a second run made the same. Pure.

A record has digests of everything that decides tokens (weights, tokenizer, template, configuration, grammar), the
request as it was sent with its seed filled in, the prompt's token ids, and the token ids of every candidate. The
server makes one for a request that asks; `replay.py` sends the request again and compares.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from forebay.contract.errors import InvalidSpec
from forebay.contract.versions import VERSION

RECORD_VERSION = 1
_DIGESTS = ("release", "model_digest", "tokenizer_digest", "template_digest", "config_digest", "grammar_digest")


@dataclass(frozen=True, slots=True)
class Identity:
    """Digests in hex of what an engine runs, and its resolved configuration."""

    model_digest: str
    tokenizer_digest: str
    template_digest: str
    config_digest: str
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One answer of a request, shown or not: its seed, its tokens in order, and how it ended."""

    prompt: int
    seed: int
    output_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | None


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What the engine did meanwhile: steps of the core at the start and the end, and its load at the start."""

    first_step: int
    last_step: int
    running_at_start: int
    waiting_at_start: int
    cached_tokens: int
    max_batch_tokens: int


def text_digest(text: str) -> str:
    """SHA-256 of a text in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def make_record(
    identity: Identity,
    request: tuple[str, Mapping[str, Any]],
    prompts: Sequence[Sequence[int]],
    grammar_digest: str,
    candidates: Sequence[Candidate],
    plan: BatchPlan,
) -> dict[str, Any]:
    """The record of one request; `request` is its path and its body, in which the first candidate's seed is set."""
    path, body = request
    sent = {**body, "stream": False, "seed": candidates[0].seed, "forebay_record": True}
    sent.pop("stream_options", None)
    return {
        "version": RECORD_VERSION,
        "release": VERSION,
        **asdict(identity),
        "grammar_digest": grammar_digest,
        "request": {"path": path, "body": sent},
        "prompt_ids": [list(ids) for ids in prompts],
        "prompt_digest": hashlib.sha256(orjson.dumps([list(ids) for ids in prompts])).hexdigest(),
        "candidates": [asdict(candidate) for candidate in candidates],
        "batch_plan": asdict(plan),
    }


def check_record(document: Any) -> dict[str, Any]:
    """A record fit for replay; raises `InvalidSpec` naming what is wrong."""
    if not isinstance(document, dict):
        raise InvalidSpec("the record must be a JSON object", field="record")
    # A whole answer is taken too: its record is inside.
    record = document.get("forebay_record", document)
    if not isinstance(record, dict) or record.get("version") != RECORD_VERSION:
        raise InvalidSpec(f"not a record of version {RECORD_VERSION}", field="record")
    for name, kind in (("request", dict), ("prompt_ids", list), ("candidates", list), ("config", dict)):
        if not isinstance(record.get(name), kind):
            raise InvalidSpec(f"the record has no {name}", field="record")
    return record


@dataclass(frozen=True, slots=True)
class Comparison:
    """`differences` in what ran, and `partings`: where the tokens of two runs part; none when they agree."""

    differences: tuple[str, ...]
    partings: tuple[str, ...]


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> Comparison:
    """Hold the record of a second run against the first."""
    differences = [
        f"{name}: {first.get(name)} became {second.get(name)}"
        for name in _DIGESTS
        if first.get(name) != second.get(name)
    ]
    return Comparison(tuple(differences), tuple(_partings(first, second)))


def _partings(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    for place, (left, right) in enumerate(zip(first["prompt_ids"], second["prompt_ids"], strict=False)):
        if left != right:
            yield f"prompt {place}: {_parting(left, right)}"
    if len(first["candidates"]) != len(second["candidates"]):
        yield f"candidates: {len(first['candidates'])} became {len(second['candidates'])}"
    for place, (one, other) in enumerate(zip(first["candidates"], second["candidates"], strict=False)):
        if one["output_ids"] != other["output_ids"]:
            yield f"answer {place}: {_parting(one['output_ids'], other['output_ids'])}"
        elif one["finish_reason"] != other["finish_reason"]:
            yield f"answer {place}: finish_reason {one['finish_reason']} became {other['finish_reason']}"


def _parting(left: Sequence[int], right: Sequence[int]) -> str:
    place = next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
    if place is None:
        return f"the first {min(len(left), len(right))} tokens agree, {len(left)} tokens became {len(right)}"
    return f"tokens part at {place}: {left[place]} became {right[place]}"
