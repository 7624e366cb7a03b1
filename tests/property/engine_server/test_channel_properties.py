"""Frames survive any cut of the byte stream, and every message survives its own encoding."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.channel import FrameReader, frame
from forebay.engine.messages import MESSAGES, Logprobs, Message, SpeculationCounts, decode, encode
from forebay.engine.request import DraftKind, RequestKind, Retention, SamplingParams, Speculation

ids = st.lists(st.integers(0, 2**53), max_size=5).map(tuple)
counts = st.lists(st.integers(0, 2**31), max_size=5).map(tuple)
texts = st.lists(st.text(max_size=10), max_size=5).map(tuple)
numbers: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**63),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=20),
    bool: st.booleans(),
    tuple[int, ...]: counts,
    tuple[str, ...]: texts,
    RequestKind: st.sampled_from(RequestKind),
}
numbers[Retention] = st.builds(Retention, **{name: numbers[kind] for name, kind in Retention.__annotations__.items()})
numbers[tuple[Retention, ...]] = st.lists(numbers[Retention], max_size=3).map(tuple)
numbers[Speculation | None] = st.none() | st.builds(Speculation, st.sampled_from(DraftKind), numbers[int])
numbers[int | None] = st.none() | numbers[int]
numbers[tuple[tuple[int, float], ...]] = st.lists(st.tuples(numbers[int], numbers[float]), max_size=3).map(tuple)
numbers[tuple[tuple[int, int], ...]] = st.lists(st.tuples(numbers[int], numbers[int]), max_size=3).map(tuple)
numbers[tuple[tuple[str, int, int], ...]] = st.lists(
    st.tuples(numbers[str], numbers[int], numbers[int]), max_size=3
).map(tuple)
numbers[SamplingParams] = st.builds(
    SamplingParams, **{name: numbers[kind] for name, kind in SamplingParams.__annotations__.items()}
)
numbers[tuple[Logprobs | None, ...]] = st.lists(
    st.none() | st.tuples(numbers[float], numbers[tuple[tuple[int, float], ...]]), max_size=3
).map(tuple)
numbers[tuple[tuple[int, SpeculationCounts], ...]] = st.lists(
    st.tuples(numbers[int], st.tuples(numbers[int], numbers[int], numbers[int], counts)), max_size=3
).map(tuple)
numbers[tuple[tuple[int, tuple[float, ...]], ...]] = st.lists(
    st.tuples(numbers[int], st.lists(numbers[float], max_size=3).map(tuple)), max_size=3
).map(tuple)
messages: st.SearchStrategy[Message] = st.one_of(
    *(
        st.builds(kind, **{name: numbers[annotation] for name, annotation in kind.__annotations__.items()})
        for kind in MESSAGES
    )
)


@given(messages)
def test_a_message_is_the_same_after_encoding_and_decoding(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.lists(messages, max_size=5), st.data())
def test_messages_come_whole_and_in_order_however_the_bytes_are_cut(sent: list[Message], data: st.DataObject) -> None:
    stream = b"".join(map(frame, sent))
    reader = FrameReader()
    received: list[Message] = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        received += reader.feed(stream[:cut])
        stream = stream[cut:]
    assert received == sent
