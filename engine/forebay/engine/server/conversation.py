"""Conversations of chat requests: turns with text, tool calls and tool results, parsed strictly. Pure.

A turn becomes what chat templates read: `role`, `content`, and for tools `tool_calls` with arguments as an object when
they are one. Called by `openai.py`; `responses_request.py` builds the same turns from its items.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from forebay.contract.errors import InvalidRequest
from forebay.engine.server.fields import Fields, kind_of, shown
from forebay.engine.server.limits import RequestLimits, bounded_length

MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 1024
MAX_CALLS = 128
MAX_NAME_CHARS = 256
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the assistant called; `arguments` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. `name` and `call_id` say which call a tool's turn answers."""

    role: str
    content: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""

    @property
    def chars(self) -> int:
        """Characters that count towards the prompt's length."""
        return len(self.content) + sum(len(call.name) + len(call.arguments) for call in self.calls)

    def to_template(self) -> dict[str, Any]:
        """The turn as chat templates read it."""
        turn: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.calls:
            turn["tool_calls"] = [_template_call(call) for call in self.calls]
        if self.call_id:
            turn["tool_call_id"] = self.call_id
        if self.name:
            turn["name"] = self.name
        return turn


def _template_call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        arguments = call.arguments
    function = {"name": call.name, "arguments": arguments if isinstance(arguments, dict) else call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def parse_messages(fields: Fields, limits: RequestLimits) -> tuple[Message, ...]:
    """The field `messages`; tool turns must answer a call that an earlier turn made."""
    items = fields.array("messages", MAX_MESSAGES)
    if not items:
        raise fields.refuse("messages", "is required and must not be empty")
    messages: list[Message] = []
    called: dict[str, str] = {}
    for place, item in enumerate(items):
        message = _message(fields.name(f"messages[{place}]"), item, called)
        called.update({call.id: call.name for call in message.calls})
        messages.append(message)
    bounded_length(fields, "messages", sum(message.chars for message in messages), limits)
    return tuple(messages)


def _message(path: str, item: Any, called: dict[str, str]) -> Message:
    fields = object_fields(path, item)
    role = fields.string("role")
    if role not in ROLES:
        given = "nothing" if role is None else shown(role)
        raise fields.refuse("role", f"must be one of {', '.join(ROLES)}, not {given}")
    calls = _calls(fields) if role == "assistant" else ()
    content = "" if calls and fields.get("content") is None else parse_content(fields, "content")
    call_id = name = ""
    if role == "tool":
        call_id = fields.string("tool_call_id") or ""
        if call_id not in called:
            raise fields.refuse("tool_call_id", "must be the id of a call in an earlier message")
        name = called[call_id]
    fields.finish(
        frozenset({"name", "refusal", "annotations", "reasoning_content"}),
        {"tool_calls": ([],), "function_call": (), "audio": (), "tool_call_id": ()},
    )
    return Message(ROLES[role], content, calls, call_id, name)


def _calls(fields: Fields) -> tuple[ToolCall, ...]:
    calls = []
    for place, item in enumerate(fields.array("tool_calls", MAX_CALLS) or []):
        call = object_fields(fields.name(f"tool_calls[{place}]"), item)
        if call.string("type") not in {None, "function"}:
            raise call.refuse("type", "must be function")
        function = call.object("function")
        if function is None:
            raise call.refuse("function", "is required")
        made = ToolCall(
            call.string("id") or f"call_{place}",
            required_name(function, "name"),
            function.string("arguments") or "{}",
        )
        function.finish(frozenset(), {})
        call.finish(frozenset({"index"}), {})
        calls.append(made)
    return tuple(calls)


def required_name(fields: Fields, field: str) -> str:
    """A string of bounded length that must be there."""
    name = fields.string(field)
    if name is None or not 1 <= len(name) <= MAX_NAME_CHARS:
        raise fields.refuse(field, f"is required, with 1 to {MAX_NAME_CHARS} characters")
    return name


def parse_content(fields: Fields, field: str, kinds: frozenset[str] = frozenset({"text"})) -> str:
    """Text content: a string, or an array of text parts of these `kinds`, joined."""
    value = fields.get(field)
    if isinstance(value, str):
        return value
    if value is None:
        raise fields.refuse(field, "is required")
    if not isinstance(value, list):
        raise fields.refuse(field, f"must be a string or an array of text parts, not {kind_of(value)}")
    texts = []
    for place, part in enumerate(fields.array(field, MAX_CONTENT_PARTS) or []):
        inner = object_fields(fields.name(f"{field}[{place}]"), part)
        if inner.string("type") not in kinds:
            raise inner.refuse("type", f"must be {' or '.join(sorted(kinds))}, not {shown(part.get('type'))}")
        text = inner.string("text")
        if text is None:
            raise inner.refuse("text", "is required")
        inner.finish(frozenset({"annotations", "logprobs", "cache_control", "prompt_cache_breakpoint"}), {})
        texts.append(text)
    return "".join(texts)


def object_fields(path: str, item: Any) -> Fields:
    """An item of an array as fields; refused by its path when it is not an object."""
    if not isinstance(item, dict):
        raise InvalidRequest(f"{path}: must be an object, not {kind_of(item)}", param=path)
    return Fields(item, path)
