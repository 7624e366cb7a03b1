"""Tool calls in text: deltas in any pieces, how answers end, and the grammar that makes the text."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.engine.structured.source import GrammarSource, SourceKind
from forebay.engine.structured.tool_calls import ContentDelta, ToolCallParser, ToolDelta
from forebay.engine.structured.tool_prompt import knows_tools, with_tool_block
from grammar_walk import TIGHT, Walker

CALL = '<tool_call>\n{"name": "find", "arguments": {"city": "a}\\"<b>", "days": [1, 2]}}\n</tool_call>'
SECOND = '<tool_call>{"name":"stop","arguments":{}}</tool_call>'


def read(
    text: str, pieces: list[int], *, free_text: bool = True
) -> tuple[str, list[tuple[str, str, str]], ToolCallParser]:
    """Content, calls as (id, name, arguments) and the parser after the whole text in pieces of these lengths."""
    ids = (f"call_{number}" for number in itertools.count())
    parser = ToolCallParser(lambda: next(ids), free_text=free_text)
    deltas: list[ContentDelta | ToolDelta] = []
    at = 0
    for length in itertools.chain(pieces, itertools.repeat(7)):
        if at >= len(text):
            break
        deltas += parser.feed(text[at : at + length])
        at += length
    deltas += parser.finish()
    content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
    calls: list[tuple[str, str, str]] = []
    for delta in deltas:
        if isinstance(delta, ToolDelta):
            if delta.id:
                assert delta.index == len(calls)
                calls.append((delta.id, delta.name, ""))
            calls[delta.index] = (*calls[delta.index][:2], calls[delta.index][2] + delta.arguments)
    return content, calls, parser


@given(st.lists(st.integers(1, 9), max_size=60))
@settings(deadline=None)
def test_the_pieces_of_the_text_do_not_matter(pieces: list[int]) -> None:
    content, calls, parser = read(f"I look it up.\n{CALL}\n{SECOND}\n", pieces)
    assert content == "I look it up."
    assert [(name, json.loads(arguments)) for _, name, arguments in calls] == [
        ("find", {"city": 'a}"<b>', "days": [1, 2]}),
        ("stop", {}),
    ]
    assert [call_id for call_id, _, _ in calls] == ["call_0", "call_1"]
    assert parser.end(ended_by_token=True).finish_reason == "tool_calls"


@given(st.text("<tol_cal>/ \nab{}", max_size=60), st.lists(st.integers(1, 5), max_size=40))
@settings(deadline=None)
def test_text_without_calls_comes_out_as_it_is(text: str, pieces: list[int]) -> None:
    if "<tool_call>" not in text:
        content, calls, parser = read(text, pieces)
        assert (content, calls) == (text, [])
        assert parser.end(ended_by_token=True).finish_reason == "stop"


@pytest.mark.parametrize("cut", range(1, len(CALL)))
def test_an_answer_cut_inside_a_call_is_incomplete(cut: int) -> None:
    _, _, parser = read(CALL[:cut], [])
    end = parser.end(ended_by_token=False)
    if cut < len("<tool_call>"):
        assert (end.finish_reason, end.incomplete) == ("length", False)
    else:
        assert (end.finish_reason, end.incomplete) == ("length", True)


def test_an_answer_that_must_call_and_did_not_is_incomplete() -> None:
    _, _, parser = read("well", [], free_text=False)
    assert parser.end(ended_by_token=False).incomplete


def test_text_that_breaks_the_form_is_given_as_content() -> None:
    text = "<tool_call>" + "no json " * 400
    content, calls, _ = read(text, [])
    assert (content, calls) == (text, [])


TOOLS = [
    {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 4}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
    {"name": "stop", "parameters": {"type": "object", "additionalProperties": False}},
]


def tools_source(mode: str, *, parallel: bool = True, answer: str | None = None) -> GrammarSource:
    form = None if answer is None else {"kind": "json_schema", "text": answer, "param": "response_format"}
    document = {"mode": mode, "parallel": parallel, "tools": TOOLS, "answer": form}
    return GrammarSource(SourceKind.TOOLS, json.dumps(document), "tools", "auto", TIGHT)


def check_calls(calls: list[tuple[str, str, str]]) -> None:
    for _, name, arguments in calls:
        value = json.loads(arguments)
        assert name in ("find", "stop")
        assert set(value) <= ({"city", "days"} if name == "find" else set())
        assert name == "stop" or len(value["city"]) <= 4


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_required_calls_are_calls_and_nothing_else(temperature: float) -> None:
    walker = Walker.small()
    for parallel in (True, False):
        open_matcher = walker.open(tools_source("required", parallel=parallel))
        for seed in range(8):
            content, calls, parser = read(walker.walk(open_matcher(), temperature, seed), [], free_text=False)
            assert content == ""
            assert 1 <= len(calls) <= (16 if parallel else 1)
            check_calls(calls)
            assert parser.end(ended_by_token=True).finish_reason == "tool_calls"


def test_prose_may_lead_to_a_call_and_every_call_is_whole() -> None:
    walker = Walker.small()
    matcher = walker.open(tools_source("auto"))()
    mask = np.zeros(walker.vocabulary.words, np.int32)
    for token in walker.codec.encode_text(
        f"so <tool {CALL}\n{SECOND}".replace('a}\\"<b>', "Oslo").replace("[1, 2]", "2")
    ):
        matcher.fill(mask)
        assert (mask[token // 32] >> (token % 32)) & 1
        assert matcher.accept(token)
    assert matcher.complete
    for token in walker.codec.encode_text('<tool_call>{"name": "find'):
        assert matcher.accept(token)
    assert not matcher.complete
    assert not matcher.accept(walker.end)
    assert not matcher.accept(walker.codec.encode_text("x")[0])


def test_an_answer_in_a_form_may_stand_in_place_of_calls() -> None:
    walker = Walker.small()
    open_matcher = walker.open(tools_source("auto", answer='{"type": "boolean"}'))
    for seed in range(8):
        content, calls, _ = read(walker.walk(open_matcher(), 2.0, seed), [], free_text=False)
        assert content in ("true", "false") if not calls else content == ""
        check_calls(calls)


def test_a_template_without_tools_gets_them_as_text() -> None:
    tools = [{"type": "function", "function": {"name": "find", "description": "d", "parameters": {}}}]
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": {"city": "Oslo"}}}
    turns = with_tool_block(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "rain", "tool_call_id": "c"},
        ],
        tools,
    )
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user"]
    assert turns[0]["content"].startswith("Be brief.\n\n")
    assert '"name": "find"' in turns[0]["content"]
    assert read(turns[2]["content"], [])[1][0][1:] == ("find", '{"city": "Oslo"}')
    assert "rain" in turns[3]["content"]
    assert knows_tools("{% if tools %}")
    assert not knows_tools("{{ messages }}")
