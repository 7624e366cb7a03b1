"""The fields of a request that say how to pick tokens and when to stop, read strictly. Pure.

Shared by chat, completions and responses. Ranges are OpenAI's where it has the field; the others are extensions.
"""

import re
from dataclasses import dataclass

from forebay.engine.request import DraftKind, Retention, SamplingParams, Speculation
from forebay.engine.server.conversation import object_fields
from forebay.engine.server.fields import Fields, kind_of, shown
from forebay.engine.server.limits import RequestLimits

MAX_STOP_CHARS = 256
MAX_SEED = (1 << 64) - 1
MAX_PRIORITY = 100
MAX_RETENTION_RANGES = 16
MAX_RETENTION_S = 86_400.0
_TOKEN_ID = re.compile("[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Stops:
    """What ends an answer beside its length: texts, token ids, and whether the model's own end tokens count."""

    texts: tuple[str, ...]
    token_ids: tuple[int, ...]
    ignore_eos: bool


def parse_sampling(fields: Fields, limits: RequestLimits, top_logprobs: int | None) -> SamplingParams:
    """Everything of `SamplingParams` but the seed and `min_tokens`, which depends on the length."""
    temperature = fields.number("temperature", 0.0, 2.0)
    top_p = fields.number("top_p", 0.0, 1.0)
    if top_p == 0.0:
        raise fields.refuse("top_p", "must be above 0; use temperature 0 for greedy decoding")
    repetition = fields.number("repetition_penalty", 0.01, 10.0)
    return SamplingParams(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=fields.integer("top_k", 0, limits.vocabulary) or 0,
        min_p=fields.number("min_p", 0.0, 1.0) or 0.0,
        repetition_penalty=1.0 if repetition is None else repetition,
        presence_penalty=fields.number("presence_penalty", -2.0, 2.0) or 0.0,
        frequency_penalty=fields.number("frequency_penalty", -2.0, 2.0) or 0.0,
        logit_bias=_logit_bias(fields, limits),
        top_logprobs=top_logprobs,
    )


def _logit_bias(fields: Fields, limits: RequestLimits) -> tuple[tuple[int, float], ...]:
    biases = fields.get("logit_bias")
    if biases is None:
        return ()
    if not isinstance(biases, dict):
        raise fields.refuse("logit_bias", f"must be an object of token id to bias, not {kind_of(biases)}")
    if len(biases) > limits.max_logit_bias:
        raise fields.refuse("logit_bias", f"has {len(biases)} entries; at most {limits.max_logit_bias} are allowed")
    found: dict[int, float] = {}
    for key, value in biases.items():
        if not _TOKEN_ID.fullmatch(key) or int(key) >= limits.vocabulary:
            raise fields.refuse("logit_bias", f"{shown(key)} is not a token id below {limits.vocabulary}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not -100 <= value <= 100:
            raise fields.refuse("logit_bias", f"the bias of {key} must be a number from -100 to 100")
        found[int(key)] = float(value)
    return tuple(sorted(found.items()))


def parse_seed(fields: Fields) -> int | None:
    """The field `seed` as unsigned 64 bit, None when the server is to pick one."""
    seed = fields.integer("seed", -(1 << 63), MAX_SEED)
    return None if seed is None else seed & MAX_SEED


def parse_stops(fields: Fields, limits: RequestLimits) -> Stops:
    """The fields `stop`, `stop_token_ids` and `ignore_eos`."""
    ids = fields.array("stop_token_ids", limits.max_stop) or []
    for place, item in enumerate(ids):
        if type(item) is not int or not 0 <= item < limits.vocabulary:
            raise fields.refuse("stop_token_ids", f"item {place} must be a token id below {limits.vocabulary}")
    return Stops(_stop_texts(fields, limits), tuple(ids), fields.boolean("ignore_eos") or False)


def _stop_texts(fields: Fields, limits: RequestLimits) -> tuple[str, ...]:
    value = fields.get("stop")
    texts = [value] if isinstance(value, str) else fields.array("stop", limits.max_stop) or []
    for place, stop in enumerate(texts):
        if not isinstance(stop, str):
            raise fields.refuse("stop", f"item {place} must be a string, not {kind_of(stop)}")
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise fields.refuse("stop", f"item {place} must have 1 to {MAX_STOP_CHARS} characters, not {len(stop)}")
    return tuple(texts)


def parse_priority(fields: Fields) -> int:
    """The extension `priority`: higher goes first."""
    return fields.integer("priority", -MAX_PRIORITY, MAX_PRIORITY) or 0


def parse_speculation(fields: Fields, limits: RequestLimits) -> Speculation | None:
    """The extension `speculation`: an object with `kind` off, ngram or draft, and `max_tokens`."""
    asked = fields.object("speculation")
    if asked is None:
        return limits.speculation
    kind = asked.string("kind")
    if kind not in {"off", "ngram", "draft"}:
        raise asked.refuse("kind", "must be off, ngram or draft")
    if kind == "draft" and not limits.may_draft:
        raise asked.refuse("kind", "draft needs an engine that was started with draft_model")
    most = asked.integer("max_tokens", 1, limits.draft_tokens) or limits.draft_tokens
    asked.finish(frozenset(), {})
    return None if kind == "off" else Speculation(DraftKind(kind), most)


def parse_retention(fields: Fields) -> tuple[Retention, ...]:
    """The extension `retention`: token ranges of the prompt with a priority and a duration."""
    ranges = []
    for place, item in enumerate(fields.array("retention", MAX_RETENTION_RANGES) or []):
        one = object_fields(fields.name(f"retention[{place}]"), item)
        start = one.integer("start", 0, 1 << 24) or 0
        end = one.integer("end", 1, 1 << 24)
        priority = one.integer("priority", 0, 100)
        if end is None or end <= start:
            raise one.refuse("end", "must be above start")
        if priority is None:
            raise one.refuse("priority", "is required, from 0 to 100")
        duration_s = one.number("duration_s", 0.0, MAX_RETENTION_S)
        one.finish(frozenset(), {})
        ranges.append(Retention(start, end, priority, MAX_RETENTION_S if duration_s is None else duration_s))
    return tuple(ranges)
