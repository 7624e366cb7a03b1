"""Request bodies of the OpenAI endpoints, parsed strictly into frozen values. Pure, no I/O.

A field that would change the answer and is not supported is refused by name; known fields that change nothing pass.
Everything is bounded before any work is done with it. Every problem is an `InvalidRequest` that names the field.
Called by `generate.py`; the token counts are checked there, after encoding.
"""

from dataclasses import dataclass
from typing import Any

from forebay.contract.errors import InvalidRequest
from forebay.engine.request import SamplingParams
from forebay.engine.server.fields import Fields, kind_of, shown

MAX_STOP_CHARS = 256
MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 1024
MAX_SEED = (1 << 64) - 1

_HARMLESS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0, 0.0),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0, 0.0),
    "modalities": (["text"],),
    "prediction": (),
    "presence_penalty": (0, 0.0),
    "reasoning_effort": (),
    "repetition_penalty": (1, 1.0),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds of one request; lengths in tokens, `max_prompt_chars` bounds text before it is encoded."""

    served_names: tuple[str, ...]
    max_prompt_tokens: int
    max_prompt_chars: int
    max_tokens: int
    default_max_tokens: int
    max_sequence_tokens: int
    max_n: int
    max_stop: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation with plain text content."""

    role: str
    content: str


Prompt = str | tuple[int, ...] | tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A valid request. `prompts` are texts or token ids, or one conversation; each gets `n` answers.

    `max_tokens` is None when the client named none, and `max_tokens_field` is the field it used. `seed` is None when
    the server is to pick one.
    """

    model: str
    prompts: tuple[Prompt, ...]
    prompt_field: str
    n: int
    sampling: SamplingParams
    seed: int | None
    max_tokens: int | None
    max_tokens_field: str
    stop: tuple[str, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool


def parse_chat(values: dict[str, Any], limits: RequestLimits) -> GenerateRequest:
    """The body of /v1/chat/completions."""
    fields = Fields(values)
    model = _model(fields, limits)
    conversation = _messages(fields, limits)
    return _generate(fields, limits, model, (conversation,), "messages")


def parse_completion(values: dict[str, Any], limits: RequestLimits) -> GenerateRequest:
    """The body of /v1/completions; `prompt` is a string, token ids, or an array of either."""
    fields = Fields(values)
    model = _model(fields, limits)
    return _generate(fields, limits, model, _prompts(fields, limits), "prompt")


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A valid /tokenize body: a text or a conversation."""

    prompt: Prompt
    prompt_field: str


def parse_tokenize(values: dict[str, Any], limits: RequestLimits) -> TokenizeRequest:
    """The body of /tokenize: `prompt` or `messages`, and `model` when given must be served."""
    fields = Fields(values)
    if fields.get("model") is not None:
        _model(fields, limits)
    has_messages = fields.get("messages") is not None
    if has_messages == (fields.get("prompt") is not None):
        raise InvalidRequest("prompt: give either prompt or messages", param="prompt")
    fields.finish(_HARMLESS, {})
    if has_messages:
        return TokenizeRequest(_messages(fields, limits), "messages")
    text = fields.string("prompt") or ""
    return TokenizeRequest(_bounded_text(fields, "prompt", text, limits), "prompt")


def _model(fields: Fields, limits: RequestLimits) -> str:
    model = fields.string("model")
    if model is None:
        raise fields.refuse("model", f"is required; this engine serves {', '.join(limits.served_names)}")
    if model not in limits.served_names:
        served = ", ".join(limits.served_names)
        raise InvalidRequest(
            f"model: {shown(model)} is not served here; this engine serves {served}", param="model", status=404
        )
    return model


def _generate(
    fields: Fields, limits: RequestLimits, model: str, prompts: tuple[Prompt, ...], prompt_field: str
) -> GenerateRequest:
    max_tokens, max_tokens_field = _max_tokens(fields, limits)
    n = fields.integer("n", 1, limits.max_n) or 1
    if n * len(prompts) > limits.max_n:
        raise fields.refuse("n", f"{len(prompts)} prompts times {n} answers is more than {limits.max_n}")
    stream = fields.boolean("stream") or False
    request = GenerateRequest(
        model=model,
        prompts=prompts,
        prompt_field=prompt_field,
        n=n,
        sampling=_sampling(fields, limits),
        seed=_seed(fields),
        max_tokens=max_tokens,
        max_tokens_field=max_tokens_field,
        stop=_stop(fields, limits),
        ignore_eos=fields.boolean("ignore_eos") or False,
        stream=stream,
        include_usage=_include_usage(fields, stream=stream),
    )
    fields.finish(_HARMLESS, _NEUTRAL)
    return request


def _sampling(fields: Fields, limits: RequestLimits) -> SamplingParams:
    temperature = fields.number("temperature", 0.0, 2.0)
    top_p = fields.number("top_p", 0.0, 1.0)
    if top_p == 0.0:
        raise fields.refuse("top_p", "must be above 0; use temperature 0 for greedy decoding")
    return SamplingParams(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=fields.integer("top_k", 0, limits.vocabulary) or 0,
    )


def _seed(fields: Fields) -> int | None:
    seed = fields.integer("seed", -(1 << 63), MAX_SEED)
    return None if seed is None else seed & MAX_SEED


def _max_tokens(fields: Fields, limits: RequestLimits) -> tuple[int | None, str]:
    old = fields.integer("max_tokens", 1, limits.max_tokens)
    new = fields.integer("max_completion_tokens", 1, limits.max_tokens)
    if old is not None and new is not None and old != new:
        raise fields.refuse("max_tokens", "differs from max_completion_tokens; give one of them")
    return (new, "max_completion_tokens") if new is not None else (old, "max_tokens")


def _stop(fields: Fields, limits: RequestLimits) -> tuple[str, ...]:
    value = fields.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else fields.array("stop", limits.max_stop) or []
    for place, stop in enumerate(stops):
        if not isinstance(stop, str):
            raise fields.refuse("stop", f"item {place} must be a string, not {kind_of(stop)}")
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise fields.refuse("stop", f"item {place} must have 1 to {MAX_STOP_CHARS} characters, not {len(stop)}")
    return tuple(stops)


def _include_usage(fields: Fields, *, stream: bool) -> bool:
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise fields.refuse("stream_options", "needs stream: true")
    include = options.boolean("include_usage") or False
    options.finish(frozenset({"include_obfuscation"}), {})
    return include


def _messages(fields: Fields, limits: RequestLimits) -> tuple[Message, ...]:
    items = fields.array("messages", MAX_MESSAGES)
    if not items:
        raise fields.refuse("messages", "is required and must not be empty")
    messages = tuple(_message(fields.name(f"messages[{place}]"), item) for place, item in enumerate(items))
    _bounded_length(fields, "messages", sum(len(message.content) for message in messages), limits)
    return messages


def _message(path: str, item: Any) -> Message:
    if not isinstance(item, dict):
        raise InvalidRequest(f"{path}: must be an object, not {kind_of(item)}", param=path)
    fields = Fields(item, path)
    role = fields.string("role")
    if role not in _ROLES:
        given = "nothing" if role is None else shown(role)
        raise fields.refuse("role", f"must be one of {', '.join(_ROLES)}, not {given}")
    content = _content(fields)
    fields.finish(frozenset({"name", "refusal"}), {"tool_calls": ([],), "function_call": (), "audio": ()})
    return Message(_ROLES[role], content)


def _content(fields: Fields) -> str:
    value = fields.get("content")
    if isinstance(value, str):
        return value
    if value is None:
        raise fields.refuse("content", "is required")
    if not isinstance(value, list):
        raise fields.refuse("content", f"must be a string or an array of text parts, not {kind_of(value)}")
    texts = []
    for place, part in enumerate(fields.array("content", MAX_CONTENT_PARTS) or []):
        path = fields.name(f"content[{place}]")
        if not isinstance(part, dict):
            raise InvalidRequest(f"{path}: must be an object, not {kind_of(part)}", param=path)
        inner = Fields(part, path)
        if inner.string("type") != "text":
            raise inner.refuse("type", f"must be text, not {shown(part.get('type'))}")
        text = inner.string("text")
        if text is None:
            raise inner.refuse("text", "is required")
        inner.finish(frozenset(), {})
        texts.append(text)
    return "".join(texts)


def _prompts(fields: Fields, limits: RequestLimits) -> tuple[Prompt, ...]:
    value = fields.get("prompt")
    if value is None:
        raise fields.refuse("prompt", "is required")
    if isinstance(value, str):
        return (_bounded_text(fields, "prompt", value, limits),)
    if not isinstance(value, list):
        raise fields.refuse("prompt", f"must be a string, token ids, or an array of them, not {kind_of(value)}")
    if not value:
        raise fields.refuse("prompt", "must not be empty")
    if type(value[0]) is int:
        return (_token_ids(fields, "prompt", value, limits),)
    fields.array("prompt", limits.max_n)
    return tuple(_prompt(fields, f"prompt[{place}]", item, limits) for place, item in enumerate(value))


def _prompt(fields: Fields, name: str, item: Any, limits: RequestLimits) -> Prompt:
    if isinstance(item, str):
        return _bounded_text(fields, name, item, limits)
    if isinstance(item, list):
        return _token_ids(fields, name, item, limits)
    raise fields.refuse(name, f"must be a string or token ids, not {kind_of(item)}")


def _token_ids(fields: Fields, name: str, items: list[Any], limits: RequestLimits) -> tuple[int, ...]:
    if not items:
        raise fields.refuse(name, "must not be empty")
    if len(items) > limits.max_prompt_tokens:
        raise fields.refuse(name, f"has {len(items)} tokens; this engine takes at most {limits.max_prompt_tokens}")
    for place, item in enumerate(items):
        if type(item) is not int or not 0 <= item < limits.vocabulary:
            raise fields.refuse(name, f"item {place} must be a token id below {limits.vocabulary}, not {shown(item)}")
    return tuple(items)


def _bounded_text(fields: Fields, name: str, text: str, limits: RequestLimits) -> str:
    if not text:
        raise fields.refuse(name, "must not be empty")
    _bounded_length(fields, name, len(text), limits)
    return text


def _bounded_length(fields: Fields, name: str, chars: int, limits: RequestLimits) -> None:
    """Refuse text that cannot fit even at the most characters one token can stand for."""
    if chars > limits.max_prompt_chars:
        raise fields.refuse(
            name, f"has {chars} characters, too many for a prompt of at most {limits.max_prompt_tokens} tokens"
        )
