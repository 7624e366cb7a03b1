"""Request bodies of chat, completions, embeddings, tokenize and detokenize, parsed strictly into frozen values. Pure.

A field that would change the answer and is not supported is refused by name; known fields that change nothing pass.
Everything is bounded before any work is done with it. Every problem is an `InvalidRequest` that names the field.
Called by the handlers; token counts are checked there, after encoding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from forebay.contract.errors import InvalidRequest
from forebay.engine.request import Retention, SamplingParams, Speculation
from forebay.engine.server.conversation import Message, parse_messages
from forebay.engine.server.fields import Fields, kind_of
from forebay.engine.server.limits import RequestLimits, bounded_text, served_model, token_ids
from forebay.engine.server.sampling_fields import (
    Stops,
    parse_priority,
    parse_retention,
    parse_sampling,
    parse_seed,
    parse_speculation,
    parse_stops,
)
from forebay.engine.structured import request as structure
from forebay.engine.structured.request import StructuredRequest, Tool

MAX_INPUTS = 2048
HARMLESS = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "suffix": ("",),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}

Prompt = str | tuple[int, ...] | tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A valid request. `prompts` are texts or token ids, or one conversation; each gets `n` answers, the best of
    `best_of` by mean log probability.

    `sampling` has no seed: `seed` is None when the server is to pick one. `max_tokens` is None when the client named
    none, and `max_tokens_field` is the field it used. `logprobs` is how many alternatives to show, None for none.
    `echo` is what the answer repeats of the request.
    """

    model: str
    prompts: tuple[Prompt, ...]
    prompt_field: str
    n: int
    best_of: int
    sampling: SamplingParams
    seed: int | None
    max_tokens: int | None
    max_tokens_field: str
    stops: Stops
    priority: int
    speculation: Speculation | None
    retention: tuple[Retention, ...]
    structured: StructuredRequest | None
    logprobs: int | None
    stream: bool
    include_usage: bool
    record: bool
    echo: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Functions that the model may call."""
        return () if self.structured is None else self.structured.tools


def parse_chat(values: dict[str, Any], limits: RequestLimits) -> GenerateRequest:
    """The body of /v1/chat/completions."""
    fields = Fields(values)
    model = served_model(fields, limits)
    conversation = parse_messages(fields, limits)
    top = fields.integer("top_logprobs", 0, limits.max_top_logprobs)
    shows = fields.boolean("logprobs") or False
    if top and not shows:
        raise fields.refuse("top_logprobs", "needs logprobs: true")
    request = generation(fields, values, limits, model, (conversation,), "messages", (top or 0) if shows else None)
    fields.finish(HARMLESS, NEUTRAL)
    return request


def parse_completion(values: dict[str, Any], limits: RequestLimits) -> GenerateRequest:
    """The body of /v1/completions; `prompt` is a string, token ids, or an array of either."""
    fields = Fields(values)
    model = served_model(fields, limits)
    prompts = _prompts(fields, "prompt", limits, limits.max_n)
    shown_logprobs = None
    if fields.get("logprobs") is not False:
        shown_logprobs = fields.integer("logprobs", 0, limits.max_top_logprobs)
    request = generation(fields, values, limits, model, prompts, "prompt", shown_logprobs)
    best_of = fields.integer("best_of", request.n, limits.max_n) or request.n
    if best_of > request.n:
        request = _best_of(fields, request, best_of, limits)
    fields.finish(HARMLESS, NEUTRAL)
    return request


def _best_of(fields: Fields, request: GenerateRequest, best_of: int, limits: RequestLimits) -> GenerateRequest:
    if request.stream:
        raise fields.refuse("best_of", "cannot be streamed: the best is known at the end")
    if best_of * len(request.prompts) > limits.max_n:
        raise fields.refuse("best_of", f"{len(request.prompts)} prompts times {best_of} is more than {limits.max_n}")
    sampling = replace(request.sampling, top_logprobs=request.sampling.top_logprobs or 0)
    return replace(request, best_of=best_of, sampling=sampling)


def generation(
    fields: Fields,
    values: dict[str, Any],
    limits: RequestLimits,
    model: str,
    prompts: tuple[Prompt, ...],
    prompt_field: str,
    logprobs: int | None,
) -> GenerateRequest:
    """The fields that every way of generating shares; the caller finishes `fields`."""
    max_tokens, max_tokens_field = _max_tokens(fields, limits)
    n = fields.integer("n", 1, limits.max_n) or 1
    if n * len(prompts) > limits.max_n:
        raise fields.refuse("n", f"{len(prompts)} prompts times {n} answers is more than {limits.max_n}")
    stream = fields.boolean("stream") or False
    min_tokens = fields.integer("min_tokens", 0, limits.max_tokens) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise fields.refuse("min_tokens", f"is more than {max_tokens_field} {max_tokens}")
    for name in structure.FIELDS:
        fields.get(name)
    structured = structure.parse(values, limits.structured, chat=prompt_field != "prompt")
    sampling = replace(parse_sampling(fields, limits, logprobs), min_tokens=min_tokens)
    return GenerateRequest(
        model=model,
        prompts=prompts,
        prompt_field=prompt_field,
        n=n,
        best_of=n,
        sampling=sampling,
        seed=parse_seed(fields),
        max_tokens=max_tokens,
        max_tokens_field=max_tokens_field,
        stops=parse_stops(fields, limits),
        priority=parse_priority(fields),
        speculation=parse_speculation(fields, limits),
        retention=parse_retention(fields),
        structured=structured,
        logprobs=logprobs,
        stream=stream,
        include_usage=_include_usage(fields, stream=stream),
        record=_record(fields, limits),
    )


def _record(fields: Fields, limits: RequestLimits) -> bool:
    asked = fields.boolean("forebay_record") or False
    if asked and not limits.may_record:
        raise fields.refuse("forebay_record", "this engine gives no records (configuration key record)")
    return asked


def _max_tokens(fields: Fields, limits: RequestLimits) -> tuple[int | None, str]:
    old = fields.integer("max_tokens", 1, limits.max_tokens)
    new = fields.integer("max_completion_tokens", 1, limits.max_tokens)
    if old is not None and new is not None and old != new:
        raise fields.refuse("max_tokens", "differs from max_completion_tokens; give one of them")
    return (new, "max_completion_tokens") if new is not None else (old, "max_tokens")


def _include_usage(fields: Fields, *, stream: bool) -> bool:
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise fields.refuse("stream_options", "needs stream: true")
    include = options.boolean("include_usage") or False
    options.finish(frozenset({"include_obfuscation"}), {})
    return include


def _prompts(fields: Fields, name: str, limits: RequestLimits, maximum: int) -> tuple[str | tuple[int, ...], ...]:
    """A string, token ids, or an array of either."""
    value = fields.get(name)
    if value is None:
        raise fields.refuse(name, "is required")
    if isinstance(value, str):
        return (bounded_text(fields, name, value, limits),)
    if not isinstance(value, list):
        raise fields.refuse(name, f"must be a string, token ids, or an array of them, not {kind_of(value)}")
    if not value:
        raise fields.refuse(name, "must not be empty")
    if type(value[0]) is int:
        return (token_ids(fields, name, value, limits),)
    fields.array(name, maximum)
    return tuple(_prompt(fields, f"{name}[{place}]", item, limits) for place, item in enumerate(value))


def _prompt(fields: Fields, name: str, item: Any, limits: RequestLimits) -> str | tuple[int, ...]:
    if isinstance(item, str):
        return bounded_text(fields, name, item, limits)
    if isinstance(item, list):
        return token_ids(fields, name, item, limits)
    raise fields.refuse(name, f"must be a string or token ids, not {kind_of(item)}")


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A valid /tokenize body: a text or a conversation."""

    prompt: Prompt
    prompt_field: str


def parse_tokenize(values: dict[str, Any], limits: RequestLimits) -> TokenizeRequest:
    """The body of /tokenize: `prompt` or `messages`, and `model` when given must be served."""
    fields = Fields(values)
    if fields.get("model") is not None:
        served_model(fields, limits)
    has_messages = fields.get("messages") is not None
    if has_messages == (fields.get("prompt") is not None):
        raise InvalidRequest("prompt: give either prompt or messages", param="prompt")
    fields.finish(HARMLESS, {})
    if has_messages:
        return TokenizeRequest(parse_messages(fields, limits), "messages")
    text = fields.string("prompt") or ""
    return TokenizeRequest(bounded_text(fields, "prompt", text, limits), "prompt")


def parse_detokenize(values: dict[str, Any], limits: RequestLimits) -> tuple[int, ...]:
    """The body of /detokenize: `tokens`, and `model` when given must be served."""
    fields = Fields(values)
    if fields.get("model") is not None:
        served_model(fields, limits)
    tokens = fields.array("tokens", limits.max_prompt_tokens)
    if tokens is None:
        raise fields.refuse("tokens", "is required")
    fields.finish(HARMLESS, {})
    return token_ids(fields, "tokens", tokens, limits) if tokens else ()


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """A valid /v1/embeddings body; `as_base64` asks for little-endian fp32 in base64 instead of numbers."""

    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    as_base64: bool


def parse_embed(values: dict[str, Any], limits: RequestLimits) -> EmbedRequest:
    """The body of /v1/embeddings; `input` is a string, token ids, or an array of either."""
    fields = Fields(values)
    model = served_model(fields, limits)
    inputs = _prompts(fields, "input", limits, MAX_INPUTS)
    encoding = fields.string("encoding_format") or "float"
    if encoding not in {"float", "base64"}:
        raise fields.refuse("encoding_format", "must be float or base64")
    fields.finish(HARMLESS, {"dimensions": ()})
    return EmbedRequest(model, inputs, encoding == "base64")
