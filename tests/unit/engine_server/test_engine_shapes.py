"""Structured answers: whole documents, cut ones, calls, and reasoning before them, however the text is cut."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.server.events import EventLog
from forebay.engine.server.shapes import AfterReasoning, Calls, Document, Outcome, Shape

STOP, LENGTH = Outcome("stop", None), Outcome("length", None)
cuts = st.lists(st.integers(0, 80), max_size=6)


def run(
    shape: Shape, text: str, places: list[int], outcome: Outcome, *, by_token: bool
) -> tuple[str, str, list[tuple[str, str]], Outcome]:
    """Content, reasoning, calls (name, arguments) and outcome of a text that comes in pieces."""
    bounds = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    shaped = [shape.push(text[start:end]) for start, end in itertools.pairwise(bounds)]
    rest, end = shape.finish(outcome, by_token=by_token)
    calls: list[tuple[str, str]] = []
    for piece in itertools.chain.from_iterable(one.calls for one in (*shaped, rest)):
        if piece.name:
            calls.append((piece.name, ""))
        name, arguments = calls[piece.place]
        calls[piece.place] = (name, arguments + piece.arguments)
    content = "".join(one.content for one in (*shaped, rest))
    return content, "".join(one.reasoning for one in (*shaped, rest)), calls, end


@given(cuts)
def test_only_a_whole_document_stops(places: list[int]) -> None:
    text = '{"a": [1, 2]}'
    assert run(Document(is_json=True), text, places, STOP, by_token=True) == (text, "", [], STOP)
    assert run(Document(is_json=True), text, places, LENGTH, by_token=False)[3] == STOP
    cut = run(Document(is_json=True), text[:-1], places, LENGTH, by_token=False)
    assert cut == (text[:-1], "", [], Outcome("length", None, is_incomplete=True))
    at_a_stop_string = run(Document(is_json=False), "ab", places, Outcome("stop", "c"), by_token=False)
    assert at_a_stop_string[3] == Outcome("length", "c", is_incomplete=True)


@given(cuts)
def test_calls_come_whole_with_their_arguments_as_written(places: list[int]) -> None:
    text = 'Hi <tool_call>{"name": "f", "arguments": {"x": "}</"}}</tool_call>'
    numbers = itertools.count()
    content, _, calls, end = run(Calls(lambda: f"c{next(numbers)}", free_text=True), text, places, STOP, by_token=True)
    assert (content.strip(), calls, end.finish_reason) == ("Hi", [("f", '{"x": "}</"}')], "tool_calls")
    _, _, _, cut = run(Calls(lambda: "c", free_text=True), text[:40], places, LENGTH, by_token=False)
    assert (cut.finish_reason, cut.is_incomplete) == ("length", True)
    prose = run(Calls(lambda: "c", free_text=True), "no call", places, Outcome("stop", "x"), by_token=False)
    assert (prose[0], prose[3]) == ("no call", Outcome("stop", "x"))


@given(st.text(alphabet="</think>ab ", max_size=20).filter(lambda text: "</think>" not in text), cuts)
def test_reasoning_is_given_apart_from_the_answer_after_it(reasoning: str, places: list[int]) -> None:
    whole = run(AfterReasoning(Document(is_json=True)), f"{reasoning}</think>[1]", places, STOP, by_token=True)
    assert (whole[0], whole[1], whole[3]) == ("[1]", reasoning, STOP)
    cut = run(AfterReasoning(Document(is_json=True)), reasoning, places, LENGTH, by_token=False)
    assert (cut[0], cut[1], cut[3].is_incomplete) == ("", reasoning, True)


def test_a_reader_of_events_sees_each_once_and_how_many_it_lost() -> None:
    log = EventLog(lambda: 5.0, capacity=3)
    for number in range(5):
        log.note("tick", value=number)
    first = log.after(0, 2)
    assert [event["value"] for event in first["events"]] == [2, 3]
    assert (first["last"], first["lost"]) == (4, 2)
    rest = log.after(first["last"], 10)
    assert [event["value"] for event in rest["events"]] == [4]
    assert log.after(rest["last"], 10) == {"events": [], "last": 5, "lost": 0}
    assert log.after(99, 10)["events"] == []
