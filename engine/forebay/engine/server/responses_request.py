"""Bodies of /v1/responses, brought to the shape that chat has: items to turns, flat tools to nested ones. Pure.

Nothing is stored here, so what needs an earlier response (`previous_response_id`, `conversation`, `store: true`,
`background`) is refused by name. Errors name the fields as the client wrote them. Called by `generate.py`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from forebay.contract.errors import InvalidRequest
from forebay.engine.server.conversation import (
    MAX_MESSAGES,
    ROLES,
    Message,
    ToolCall,
    object_fields,
    parse_content,
    required_name,
)
from forebay.engine.server.fields import Fields, kind_of, shown
from forebay.engine.server.limits import RequestLimits, bounded_length, bounded_text, served_model
from forebay.engine.server.openai import HARMLESS, GenerateRequest, generation

_TEXT_PARTS = frozenset({"input_text", "output_text", "text"})
_LOGPROBS = "message.output_text.logprobs"
_HARMLESS = HARMLESS | {"include", "stream_options", "max_tool_calls"}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    "reasoning": ({},),
    "truncation": ("disabled",),
}
_SHARED = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("logit_bias", "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "priority", "speculation"),
    *("retention", "stream", "forebay_record", "structured_outputs", "parallel_tool_calls"),
)
"""Fields with the meaning that they have in chat."""
_ECHOED = (
    "instructions",
    "metadata",
    "parallel_tool_calls",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "user",
)
_RENAMED = (
    (re.compile(r"response_format\.json_schema\b"), "text.format"),
    (re.compile(r"response_format\b"), "text.format"),
    (re.compile(r"(tools\[\d+\]|tool_choice)\.function\b"), r"\1"),
    (re.compile(r"max_completion_tokens\b"), "max_output_tokens"),
)


def parse_responses(values: dict[str, Any], limits: RequestLimits) -> GenerateRequest:
    """The body of /v1/responses; `echo` of the result is what the answer repeats of it."""
    fields = Fields(values)
    model = served_model(fields, limits)
    if fields.boolean("store"):
        raise fields.refuse("store", "this engine stores no responses; set it to false or leave it out")
    conversation = _conversation(fields, limits)
    translated: dict[str, Any] = {name: values[name] for name in _SHARED if fields.get(name) is not None}
    translated["max_completion_tokens"] = fields.get("max_output_tokens")
    translated["tools"] = [_tool(place, item) for place, item in enumerate(fields.array("tools", 1024) or [])]
    translated["tool_choice"] = _tool_choice(fields)
    translated["response_format"] = _format(fields)
    with _own_names():
        request = generation(
            Fields(translated), translated, limits, model, (conversation,), "input", _logprobs(fields, limits)
        )
    fields.finish(_HARMLESS, _NEUTRAL)
    if request.structured is not None:
        source = request.structured.source
        request = replace(
            request,
            structured=replace(request.structured, source=replace(source, param=_own_name(source.param))),
        )
    echo = {name: values[name] for name in _ECHOED if values.get(name) is not None}
    return replace(request, echo={**echo, "max_output_tokens": request.max_tokens})


@contextmanager
def _own_names() -> Iterator[None]:
    """Refusals inside name the fields of this endpoint."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(
            _own_name(error.message), param=error.param and _own_name(error.param), status=error.status
        ) from error


def _own_name(text: str) -> str:
    for pattern, name in _RENAMED:
        text = pattern.sub(name, text)
    return text


def _logprobs(fields: Fields, limits: RequestLimits) -> int | None:
    top = fields.integer("top_logprobs", 0, limits.max_top_logprobs)
    include = fields.array("include", 16) or []
    if _LOGPROBS in include or top:
        return top or 0
    return None


def _tool(place: int, item: Any) -> Any:
    """A flat tool in the nested shape; what is not a function stays as it is, to be refused by name."""
    tool = object_fields(f"tools[{place}]", item)
    if tool.string("type") != "function":
        raise tool.refuse("type", f"must be function, not {shown(item.get('type'))}")
    return {"type": "function", "function": {name: value for name, value in item.items() if name != "type"}}


def _tool_choice(fields: Fields) -> Any:
    choice = fields.get("tool_choice")
    if isinstance(choice, dict) and "function" not in choice:
        named = {name: value for name, value in choice.items() if name != "type"}
        return {"type": choice.get("type"), "function": named}
    return choice


def _format(fields: Fields) -> Any:
    text = fields.object("text")
    if text is None:
        return None
    form = text.object("format")
    text.finish(frozenset(), {"verbosity": ("medium",)})
    if form is None:
        return None
    kind = form.string("type")
    if kind != "json_schema":
        return text.get("format")
    wrapper = {name: form.get(name) for name in ("name", "schema", "description", "strict")}
    form.finish(frozenset(), {})
    return {"type": kind, "json_schema": {name: value for name, value in wrapper.items() if value is not None}}


def _conversation(fields: Fields, limits: RequestLimits) -> tuple[Message, ...]:
    turns: list[Message] = []
    if instructions := fields.string("instructions"):
        turns.append(Message("system", instructions))
    given = fields.get("input")
    if isinstance(given, str):
        turns.append(Message("user", bounded_text(fields, "input", given, limits)))
    elif given is None or given == []:
        raise fields.refuse("input", "is required and must not be empty")
    elif not isinstance(given, list):
        raise fields.refuse("input", f"must be a string or an array of items, not {kind_of(given)}")
    else:
        called: dict[str, str] = {}
        for place, item in enumerate(fields.array("input", MAX_MESSAGES) or []):
            _add_item(turns, called, object_fields(f"input[{place}]", item))
    bounded_length(fields, "input", sum(turn.chars for turn in turns), limits)
    return tuple(turns)


def _add_item(turns: list[Message], called: dict[str, str], item: Fields) -> None:
    """Add one item; calls join the assistant's turn before them."""
    match item.string("type"):
        case None | "message":
            turns.append(_message(item))
        case "function_call":
            call = ToolCall(
                required_name(item, "call_id"), required_name(item, "name"), item.string("arguments") or "{}"
            )
            item.finish(frozenset({"id", "status", "caller", "namespace"}), {})
            called[call.id] = call.name
            last = turns[-1] if turns and turns[-1].role == "assistant" else None
            if last is None:
                turns.append(Message("assistant", "", (call,)))
            else:
                turns[-1] = replace(last, calls=(*last.calls, call))
        case "function_call_output":
            call_id = required_name(item, "call_id")
            if call_id not in called:
                raise item.refuse("call_id", "must be the call_id of an earlier function_call")
            output = parse_content(item, "output", _TEXT_PARTS)
            item.finish(frozenset({"id", "status", "caller"}), {})
            turns.append(Message("tool", output, (), call_id, called[call_id]))
        case kind:
            raise item.refuse("type", f"must be message, function_call or function_call_output, not {shown(kind)}")


def _message(item: Fields) -> Message:
    role = item.string("role")
    if role not in ROLES or role == "tool":
        given = "nothing" if role is None else shown(role)
        raise item.refuse("role", f"must be one of system, developer, user, assistant, not {given}")
    content = parse_content(item, "content", _TEXT_PARTS)
    item.finish(frozenset({"id", "status", "phase"}), {})
    return Message(ROLES[role], content)
