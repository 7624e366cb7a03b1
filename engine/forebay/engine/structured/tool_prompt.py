"""Tools in the prompt of a model whose chat template does not know tools: one block of text in the system message.

Templates that name `tools` show them in their own words and do not come here. Calls and results of earlier turns are
written as text in the same form that the grammar asks for. Pure; called by `text.py`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.engine.structured.lower_tools import CALL_CLOSE, CALL_OPEN

_BLOCK = """You can call these functions. Each line is the JSON description of one:
{tools}

To call a function, write its name and arguments as JSON between marks, one call after another:
{open}
{{"name": "function name", "arguments": {{"argument": "value"}}}}
{close}"""


def knows_tools(template: str) -> bool:
    """Whether a chat template shows tools by itself."""
    return "tools" in template


def with_tool_block(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation for a template without tools: the block in front if any, calls and results as text."""
    if not tools:
        return [_as_text(message) for message in messages]
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    block = _BLOCK.format(tools=lines, open=CALL_OPEN, close=CALL_CLOSE)
    turns = [_as_text(message) for message in messages]
    if turns and turns[0]["role"] == "system":
        return [{"role": "system", "content": f"{turns[0]['content']}\n\n{block}"}, *turns[1:]]
    return [{"role": "system", "content": block}, *turns]


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """A turn whose calls, or whose result of a call, are part of its text."""
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [_call_text(call["function"]) for call in message.get("tool_calls", ())]
    return {"role": message["role"], "content": "\n".join([*([content] if content else []), *calls])}


def _call_text(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"{CALL_OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{CALL_CLOSE}"
