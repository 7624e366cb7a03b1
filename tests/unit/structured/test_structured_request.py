"""The structured fields of a request body: what they become, and what is refused by name."""

import subprocess
import sys
from typing import Any

import pytest

from forebay.contract.errors import InvalidRequest
from forebay.engine.structured.bounds import Bounds
from forebay.engine.structured.request import StructuredRequest, StructuredSettings, parse
from forebay.engine.structured.source import SourceKind

SETTINGS = StructuredSettings("auto", 4096, 4, Bounds())
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
OTHER = {"type": "function", "function": {"name": "stop"}}


def parsed(**body: Any) -> StructuredRequest | None:
    return parse(body, SETTINGS)


def source_kind(**body: Any) -> SourceKind:
    request = parsed(**body)
    assert request is not None
    return request.source.kind


def refusal(**body: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(body, SETTINGS)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"tools": [TOOL], "tool_choice": "none"},
        {"parallel_tool_calls": False},
    ],
)
def test_a_body_that_asks_for_nothing_is_free_text(body: dict[str, Any]) -> None:
    assert parse(body, SETTINGS) is None


def test_each_field_becomes_its_kind_of_source() -> None:
    assert source_kind(response_format={"type": "json_object"}) is SourceKind.JSON_OBJECT
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}, "strict": True}}
    assert source_kind(response_format=schema) is SourceKind.JSON_SCHEMA
    assert source_kind(structured_outputs={"json": '{"type": "null"}'}) is SourceKind.JSON_SCHEMA
    assert source_kind(structured_outputs={"regex": "a"}) is SourceKind.REGEX
    assert source_kind(structured_outputs={"grammar": 'root ::= "a"'}) is SourceKind.GRAMMAR
    assert source_kind(structured_outputs={"lark": 'start: "a"'}) is SourceKind.LARK
    assert source_kind(structured_outputs={"structural_tag": {"triggers": []}}) is SourceKind.STRUCTURAL_TAG
    assert source_kind(tools=[TOOL]) is SourceKind.TOOLS


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object", "strict": True}}, "response_format.strict"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "lark": "b"}}, "structured_outputs"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a" * 5000}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
        ({"tools": [TOOL], "min_tokens": 3}, "min_tokens"),
        ({"tools": [TOOL] * 5}, "tools"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "code"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
    ],
)
def test_a_wrong_field_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    assert refusal(**body).param == param


def test_tools_are_refused_where_there_is_no_conversation() -> None:
    with pytest.raises(InvalidRequest, match="chat/completions"):
        parse({"tools": [TOOL]}, SETTINGS, chat=False)


def test_a_named_tool_is_the_only_one_offered() -> None:
    request = parsed(tools=[TOOL, OTHER], tool_choice={"type": "function", "function": {"name": "stop"}})
    assert request is not None
    assert [tool.name for tool in request.tools] == ["stop"]
    assert not request.free_text


def test_prose_is_an_answer_only_when_no_call_and_no_form_is_asked_for() -> None:
    plain, with_form = parsed(tools=[TOOL]), parsed(tools=[TOOL], response_format={"type": "json_object"})
    required = parsed(tools=[TOOL], tool_choice="required")
    assert plain is not None
    assert with_form is not None
    assert required is not None
    assert (plain.free_text, with_form.free_text, required.free_text) == (True, False, False)


def test_equal_sources_have_equal_digests_and_bounds_are_part_of_them() -> None:
    first, second = parsed(structured_outputs={"regex": "a"}), parsed(structured_outputs={"regex": "a"})
    wider = parse({"structured_outputs": {"regex": "a"}}, StructuredSettings("auto", 4096, 4, Bounds(string=9)))
    assert first is not None
    assert second is not None
    assert wider is not None
    assert first.source.digest == second.source.digest != wider.source.digest


def test_the_api_process_pays_for_no_grammar_library() -> None:
    script = "import sys, forebay.engine.server.process; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for heavy in ("'numpy'", "'torch'", "'llguidance'", "'xgrammar'", "'transformers'"):
        assert heavy not in done.stdout
