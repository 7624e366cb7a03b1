"""Bodies of /v1/responses: items to turns, flat tools to nested ones, and refusals by the client's own names."""

from typing import Any

import pytest

from forebay.contract.errors import InvalidRequest
from forebay.engine.server.conversation import Message
from forebay.engine.server.openai import GenerateRequest
from forebay.engine.server.responses_request import parse_responses
from request_build import LIMITS

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def parse(**fields: Any) -> GenerateRequest:
    """A body with these fields."""
    return parse_responses({"model": "m", "input": "hello", **fields}, LIMITS)


def turns(request: GenerateRequest) -> list[dict[str, Any]]:
    """The conversation as a template sees it."""
    return [turn.to_template() for turn in request.prompts[0] if isinstance(turn, Message)]


def test_a_string_with_instructions_is_two_turns() -> None:
    request = parse(instructions="Be brief.", max_output_tokens=7)
    assert turns(request) == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    assert (request.max_tokens, request.echo["instructions"]) == (7, "Be brief.")


def test_calls_join_the_turn_before_them_and_outputs_name_their_function() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "2", "name": "go", "arguments": "not json"},
        {"type": "function_call_output", "call_id": "1", "output": "seen"},
    ]
    user, assistant, tool = turns(parse(input=items))
    assert user == {"role": "user", "content": "ab"}
    functions = [call["function"] for call in assistant["tool_calls"]]
    assert functions == [{"name": "look", "arguments": {"x": 1}}, {"name": "go", "arguments": "not json"}]
    assert tool == {"role": "tool", "content": "seen", "tool_call_id": "1", "name": "look"}


def test_flat_tools_and_formats_become_what_chat_has() -> None:
    request = parse(tools=[TOOL], tool_choice={"type": "function", "name": "look"})
    assert [tool.name for tool in request.tools] == ["look"]
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}
    structured = parse(text=form).structured
    assert structured is not None
    assert structured.source.param == "text.format.schema"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "9", "output": ""}]}, "input[0].call_id"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "nothing"}}, "tool_choice"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"nothing": 1}, "nothing"),
    ],
)
def test_what_cannot_be_done_is_refused_by_the_name_the_client_used(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse(**fields)
    assert refusal.value.param == param
    assert refusal.value.message.startswith(param)
