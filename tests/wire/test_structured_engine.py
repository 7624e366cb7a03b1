"""Structured output through the real engine: what says `stop` validates, everything ends, and cuts say so."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from engine_process import MODEL, EngineProcess
from schema_corpus import CORPUS

pytestmark = pytest.mark.wire

SAMPLE = ["strings-0", "strings-14", "numbers-3", "values-13", "arrays-2", "objects-4", "joined-6", "references-0"]
SAMPLE += ["requests-1", "requests-2", "requests-5", "nested-0"]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def chat(engine: EngineProcess, **fields: Any) -> tuple[int, dict[str, str], Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Answer in JSON."}], "max_tokens": 48, **fields}
    status, headers, answer = engine.call("POST", "/v1/chat/completions", body, timeout_s=240)
    return status, headers, json.loads(answer)


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def events(engine: EngineProcess, **fields: Any) -> list[Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Weather in Oslo?"}], "stream": True, **fields}
    status, _, answer = engine.call("POST", "/v1/chat/completions", body, timeout_s=240)
    assert status == 200, answer
    lines = [line.removeprefix("data: ") for line in answer.decode().split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_every_answer_that_says_stop_validates_and_every_run_ends(engine: EngineProcess) -> None:
    cases = [(name, temperature) for name in SAMPLE for temperature in (0, 1, 2)]

    def run(case: tuple[str, int]) -> bool:
        schema: Any = CORPUS[case[0]]
        status, headers, answer = chat(engine, response_format=form(schema), temperature=case[1], seed=7)
        assert status == 200, (case, answer)
        choice = answer["choices"][0]
        if choice["finish_reason"] == "stop":
            value = json.loads(choice["message"]["content"])
            jsonschema.Draft202012Validator(schema).validate(value)
            assert "forebay" not in choice
            assert "x-forebay-incomplete" not in headers
            return True
        assert choice["finish_reason"] == "length", (case, choice)
        assert choice["forebay"] == {"incomplete": True}
        assert headers["x-forebay-incomplete"] == "true"
        return False

    with ThreadPoolExecutor(8) as pool:
        complete = list(pool.map(run, cases))
    assert sum(complete) >= len(cases) // 2


def test_a_schema_with_an_unsupported_keyword_is_a_400_that_names_it(engine: EngineProcess) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
    status, _, answer = chat(engine, response_format=form(schema))
    assert status == 400
    assert "'not'" in answer["error"]["message"]
    assert "#/properties/a/not" in answer["error"]["message"]
    assert answer["error"]["param"] == "response_format.json_schema.schema"


def test_a_hostile_schema_is_refused_within_the_cap_while_others_stream(engine: EngineProcess) -> None:
    values = [f"{place}-{'y' * 10}" for place in range(100)]
    members = {f"p{place}": {"enum": values, "description": "d" * 600} for place in range(55)}
    hostile = form({"allOf": [{"anyOf": [{"properties": members}, {"minProperties": 9}]}] * 2, "minProperties": 40})
    with ThreadPoolExecutor(2) as pool:
        began = time.monotonic()
        refused = pool.submit(chat, engine, response_format=hostile)
        plain = pool.submit(engine.chat, "Hello", max_tokens=8)
        assert plain.result()["choices"][0]["message"]["content"]
        status, _, answer = refused.result()
    assert status in (200, 400), answer
    assert time.monotonic() - began < 120


def test_the_other_languages_are_enforced(engine: EngineProcess) -> None:
    _, _, answer = chat(engine, structured_outputs={"regex": r"(yes|no), \d{2}!"}, temperature=1)
    assert answer["choices"][0]["message"]["content"][-4:-1].strip().isdigit()
    _, _, answer = chat(engine, structured_outputs={"lark": 'start: "left" | "right"'}, temperature=2)
    assert answer["choices"][0]["message"]["content"] in ("left", "right")
    _, _, answer = chat(engine, structured_outputs={"grammar": 'root ::= "up" | "down"'}, temperature=2)
    assert answer["choices"][0]["message"]["content"] in ("up", "down")
    tag = {"triggers": ["<n="], "structures": [{"begin": "<n=", "schema": {"type": "integer"}, "end": ">"}]}
    status, _, answer = chat(engine, structured_outputs={"structural_tag": tag}, max_tokens=8)
    assert status == 200, answer


def test_a_required_tool_call_comes_whole_and_as_deltas(engine: EngineProcess) -> None:
    _, _, answer = chat(engine, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, temperature=0)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls", choice
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert set(json.loads(call["function"]["arguments"])) == {"city"}
    named = {"type": "function", "function": {"name": "get_weather"}}
    chunks = events(engine, tools=[TOOL], tool_choice=named, parallel_tool_calls=False, max_tokens=48, temperature=0)
    deltas = [piece for chunk in chunks for piece in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert {piece["index"] for piece in deltas} == {0}
    assert deltas[0]["function"]["name"] == "get_weather"
    assert deltas[0]["id"]
    arguments = "".join(piece["function"].get("arguments") or "" for piece in deltas)
    assert set(json.loads(arguments)) == {"city"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_stream_that_is_cut_says_so_in_its_last_chunk_only(engine: EngineProcess) -> None:
    chunks = events(engine, response_format=form(CORPUS["requests-1"]), max_tokens=3)
    assert [chunk for chunk in chunks[:-1] if "forebay" in chunk["choices"][0]] == []
    last = chunks[-1]["choices"][0]
    assert last["finish_reason"] == "length"
    assert last["forebay"] == {"incomplete": True}
