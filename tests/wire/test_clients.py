"""Clients that know nothing of us: openai, litellm and langchain-openai, unmodified, against a real engine."""

import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.responses import FunctionToolParam
from pydantic import BaseModel, SecretStr

from engine_process import MODEL, EngineProcess

pytestmark = pytest.mark.wire

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
CITY = "Write a city of France as JSON."
PARAMETERS: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city", "parameters": PARAMETERS},
}
FLAT_WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": PARAMETERS,
    "strict": True,
}
ASK_WEATHER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]


class City(BaseModel):
    """What a structured answer is parsed into."""

    name: str
    is_large: bool


@pytest.fixture
def client(engine: EngineProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", timeout=120, max_retries=0) as opened:
        yield opened


def test_openai_log_probabilities_belong_to_the_tokens_of_the_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    choice = answer.choices[0]
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    assert "".join(entry.token for entry in entries) == choice.message.content
    for entry in entries:
        assert entry.logprob <= 0
        assert entry.top_logprobs[0].token == entry.token
        assert [one.logprob for one in entry.top_logprobs] == sorted(
            (one.logprob for one in entry.top_logprobs), reverse=True
        )


def test_openai_log_probabilities_stream_as_they_come_whole(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=6, temperature=0, logprobs=True)
    expected = whole.choices[0].logprobs
    assert expected is not None
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=6, temperature=0, logprobs=True, stream=True
    )
    shown = [chunk.choices[0].logprobs for chunk in stream if chunk.choices]
    streamed = [entry.logprob for one in shown if one is not None for entry in one.content or []]
    assert streamed == pytest.approx([entry.logprob for entry in expected.content or []], abs=1e-3)


def test_openai_completions_show_arrays_and_rank_the_best_of_many(client: openai.OpenAI) -> None:
    def create(best_of: int, n: int) -> list[float]:
        answer = client.completions.create(
            model=MODEL, prompt="My favourite", n=n, best_of=best_of, max_tokens=6, temperature=1, seed=3, logprobs=2
        )
        means = []
        for choice in answer.choices:
            assert choice.logprobs is not None
            values = choice.logprobs.token_logprobs or []
            assert len(values) == len(choice.logprobs.tokens or []) == len(choice.logprobs.text_offset or []) > 0
            means.append(sum(values) / len(values))
        return means

    every, best = create(4, 4), create(4, 2)
    assert best == pytest.approx(sorted(every, reverse=True)[:2], abs=1e-2)


def test_openai_penalties_and_bias_change_the_answer_as_they_say(client: openai.OpenAI) -> None:
    def text(**fields: Any) -> str:
        answer = client.completions.create(model=MODEL, prompt="1 1 1 1 1", max_tokens=8, temperature=0, **fields)
        return str(answer.choices[0].text)

    plain = text()
    token = client.completions.create(model=MODEL, prompt="1 1 1 1 1", max_tokens=1, temperature=0, logprobs=0)
    shown = token.choices[0].logprobs
    assert shown is not None
    assert plain.startswith((shown.tokens or [""])[0])
    assert text(extra_body={"repetition_penalty": 2.0}) != plain
    assert text(logit_bias={"34": 100}) == text(logit_bias={"34": 100}, seed=4)
    assert len(set(text(logit_bias={"34": 100}))) == 1


def test_openai_parses_structured_answers_of_chat_and_responses(client: openai.OpenAI) -> None:
    chat = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": CITY}],
        response_format=City,
        temperature=0,
        max_tokens=200,
    )
    assert isinstance(chat.choices[0].message.parsed, City)
    assert chat.choices[0].finish_reason == "stop"
    response = client.responses.parse(model=MODEL, input=CITY, text_format=City, temperature=0, max_output_tokens=200)
    assert isinstance(response.output_parsed, City)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=MODEL, messages=[{"role": "user", "content": CITY}], response_format=City, max_tokens=2
        )


def test_a_cut_structured_answer_is_marked(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=QUESTION, response_format={"type": "json_object"}, max_tokens=3, temperature=0
    )
    assert raw.headers["x-forebay-incomplete"] == "true"
    choice = raw.parse().choices[0]
    assert choice.finish_reason == "length"
    assert choice.model_extra == {"stop_reason": None, "forebay": {"incomplete": True}}


def test_openai_tools_are_called_and_answered_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model=MODEL, messages=ASK_WEATHER, tools=[WEATHER], tool_choice="required", temperature=0, max_tokens=200
    )
    message = whole.choices[0].message
    assert whole.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls
    call = message.tool_calls[0]
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    with client.chat.completions.stream(
        model=MODEL, messages=ASK_WEATHER, tools=[WEATHER], tool_choice="required", temperature=0, max_tokens=200
    ) as stream:
        final = stream.get_final_completion()
    streamed = final.choices[0].message.tool_calls or []
    assert [one.function.arguments for one in streamed] == [
        one.function.arguments for one in message.tool_calls if one.type == "function"
    ]
    follow_up = client.chat.completions.create(
        model=MODEL,
        messages=[
            *ASK_WEATHER,
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.function.name, "arguments": call.function.arguments},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees."},
        ],
        tools=[WEATHER],
        tool_choice="none",
        temperature=0,
        max_tokens=16,
    )
    assert follow_up.choices[0].message.content


def test_openai_responses_give_text_items_events_and_calls(client: openai.OpenAI) -> None:
    whole = client.responses.create(
        model=MODEL, input="Say hi.", instructions="Be brief.", temperature=0, max_output_tokens=60, store=False
    )
    assert whole.output_text
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    events = list(
        client.responses.create(
            model=MODEL, input="Say hi.", instructions="Be brief.", temperature=0, max_output_tokens=60, stream=True
        )
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[0].type == "response.created"
    assert events[-1].type == f"response.{whole.status}"
    called = client.responses.create(
        model=MODEL,
        input="What is the weather in Paris?",
        tools=[FLAT_WEATHER],
        tool_choice="required",
        temperature=0,
        max_output_tokens=200,
    )
    call = called.output[0]
    assert call.type == "function_call"
    follow_up = client.responses.create(
        model=MODEL,
        input=[
            {"role": "user", "content": "What is the weather in Paris?"},
            {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},
            {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."},
        ],
        temperature=0,
        max_output_tokens=8,
    )
    assert follow_up.output_text
    for fields in ({"store": True}, {"previous_response_id": "resp_1"}, {"background": True}):
        with pytest.raises(openai.BadRequestError) as refusal:
            client.responses.create(model=MODEL, input="x", extra_body=fields)
        assert refusal.value.param == next(iter(fields))


def test_openai_embeddings_say_why_this_model_has_none(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="declares no pooling"):
        client.embeddings.create(model=MODEL, input="x")


def test_litellm_completes_streams_and_responds(engine: EngineProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm  # noqa: PLC0415 - it reads the environment when imported, and takes seconds

    where = {"model": f"openai/{MODEL}", "api_base": f"{engine.url}/v1", "api_key": "none", "temperature": 0}
    whole: Any = litellm.completion(messages=QUESTION, max_tokens=12, **where)
    stream: Any = litellm.completion(messages=QUESTION, max_tokens=12, stream=True, **where)
    joined = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert joined == whole.choices[0].message.content
    assert whole.usage.total_tokens > 0
    called: Any = litellm.completion(
        messages=ASK_WEATHER, tools=[WEATHER], tool_choice="required", max_tokens=200, **where
    )
    assert called.choices[0].message.tool_calls[0].function.name == "get_weather"
    response: Any = litellm.responses(input="Say hi.", max_output_tokens=12, **where)
    assert response.output


def test_langchain_invokes_streams_binds_tools_and_structures(engine: EngineProcess) -> None:
    from langchain_openai import ChatOpenAI  # noqa: PLC0415 - takes seconds

    with httpx.Client(timeout=120) as http:
        model = ChatOpenAI(
            model=MODEL,
            base_url=f"{engine.url}/v1",
            api_key=SecretStr("none"),
            temperature=0,
            max_completion_tokens=200,
            max_retries=0,
            http_client=http,
        )
        whole = model.invoke("What is the capital of France?")
        assert whole.content
        assert "".join(str(chunk.content) for chunk in model.stream("What is the capital of France?")) == whole.content
        called = model.bind_tools([dict(WEATHER)], tool_choice="get_weather").invoke("What is the weather in Paris?")
        assert called.tool_calls[0]["name"] == "get_weather"
        assert isinstance(model.with_structured_output(City).invoke(CITY), City)
