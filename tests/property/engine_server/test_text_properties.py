"""Detokenizing and stop strings hold for any tokens, any text and any cut of it."""

from itertools import pairwise
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.request import FinishReason
from forebay.engine.server.choices import Choice
from forebay.engine.server.core_client import End, Progress
from forebay.engine.server.shapes import Outcome
from forebay.engine.text import StopMatcher
from text_build import byte_level_codec, fallback_codec

BYTE_LEVEL = byte_level_codec()
FALLBACK = fallback_codec()

Item = TypeVar("Item", str, list[int])

token_ids = st.lists(st.integers(0, BYTE_LEVEL.vocabulary_size - 1), max_size=40)
cuts = st.lists(st.integers(0, 40), max_size=8)
short_text = st.text(alphabet="abé😀 ", max_size=40)
stops = st.lists(st.text(alphabet="abé😀", min_size=1, max_size=5), min_size=1, max_size=4)


def pieces(whole: Item, places: list[int]) -> list[Item]:
    """`whole` cut at `places`."""
    bounds = [0, *sorted(min(place, len(whole)) for place in places), len(whole)]
    return [whole[start:end] for start, end in pairwise(bounds)]


@given(token_ids, cuts)
def test_deltas_joined_are_the_full_decode_for_any_tokens_of_a_byte_level_model(
    ids: list[int], places: list[int]
) -> None:
    detokenizer = BYTE_LEVEL.detokenizer()
    deltas = [detokenizer.push(piece) for piece in pieces(ids, places)]
    assert "".join(deltas) + detokenizer.finish() == BYTE_LEVEL.decode(ids)


@given(st.text(max_size=30), st.booleans())
def test_no_delta_of_valid_text_holds_a_broken_character(text: str, is_byte_level: bool) -> None:
    codec = BYTE_LEVEL if is_byte_level else FALLBACK
    ids = codec.encode_text(text)
    detokenizer = codec.detokenizer()
    deltas = [detokenizer.push([token]) for token in ids]
    assert "".join(deltas) + detokenizer.finish() == codec.decode(ids)
    if "\ufffd" not in codec.decode(ids):
        assert not any("\ufffd" in delta for delta in deltas)


@given(short_text, stops, cuts)
def test_text_given_out_ends_before_the_stop_string_that_is_complete_first(
    text: str, strings: list[str], places: list[int]
) -> None:
    matcher = StopMatcher(strings)
    given_out = ""
    for piece in pieces(text, places):
        given_out += matcher.push(piece)
        assert text.startswith(given_out)
        assert not any(stop in given_out for stop in strings)
    given_out += matcher.finish()
    ends = [(text.index(stop) + len(stop), text.index(stop), stop) for stop in strings if stop in text]
    if ends:
        assert (given_out, matcher.hit) == (text[: min(ends)[1]], min(ends)[2])
    else:
        assert (given_out, matcher.hit) == (text, None)


@given(short_text, stops, cuts)
def test_no_more_is_held_back_than_could_become_a_stop_string(text: str, strings: list[str], places: list[int]) -> None:
    matcher = StopMatcher(strings)
    seen = given_out = ""
    for piece in pieces(text, places):
        seen += piece
        given_out += matcher.push(piece)
        if matcher.hit is not None:
            return
        held = seen[len(given_out) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in strings)


@given(token_ids, st.lists(stops.map(tuple), max_size=1), cuts, st.booleans())
def test_an_answer_and_its_token_count_do_not_depend_on_how_tokens_come(
    ids: list[int], strings: list[tuple[str, ...]], places: list[int], ends: bool
) -> None:
    def run(batches: list[list[int]]) -> tuple[str, int, list[int], Outcome | None]:
        choice = Choice(0, BYTE_LEVEL.detokenizer(), strings[0] if strings else ())
        text = ""
        for batch in batches:
            text += choice.take(Progress(0, batch, None)).text
            if choice.outcome is not None:
                break
        end = End(FinishReason.LENGTH if ends else FinishReason.STOP, len(ids), 0, "")
        text += choice.take(Progress(0, (), end)).text
        return text, choice.tokens, choice.ids, choice.outcome

    one_by_one = run([[token] for token in ids])
    assert run(pieces(ids, places)) == one_by_one
    assert run([ids]) == one_by_one
