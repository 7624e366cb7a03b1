"""Prompt lookup against a plain search over the whole text, and its cost."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.engine.speculation.ngram import LONGEST_MATCH, SHORTEST_MATCH, NgramIndex


def searched(tokens: list[int], limit: int) -> list[int]:
    """The definition: the newest place after the longest earlier match of the end, which may run into itself."""
    for length in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1):
        suffix = tokens[-length:]
        for place in range(len(tokens) - 1, length - 1, -1):
            if len(suffix) == length and tokens[place - length : place] == suffix:
                text = list(tokens)
                for step in range(limit):
                    text.append(text[place + step])
                return text[len(tokens) :]
    return []


@settings(max_examples=400, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=24), st.lists(st.integers(0, 3), max_size=8), st.integers(1, 6))
def test_a_proposal_is_what_followed_the_longest_newest_match(first: list[int], then: list[int], limit: int) -> None:
    index = NgramIndex(first)
    for token in then:
        index.extend([token])
    # Chains are followed for a bounded number of places: this text is short enough for all of them.
    assert index.propose(limit) == searched(first + then, limit)


def test_a_repetition_is_continued_past_its_end() -> None:
    assert NgramIndex([9, 1, 2, 1, 2]).propose(5) == [1, 2, 1, 2, 1]


def test_text_without_a_match_gives_nothing() -> None:
    assert NgramIndex([1, 2, 3, 4]).propose(4) == []
    assert NgramIndex([1]).propose(4) == []
    assert NgramIndex([]).propose(4) == []


def test_the_worst_text_costs_no_more_than_a_bounded_walk() -> None:
    # One pair all through, and matches that never get long: every look-up walks its whole chain.
    index = NgramIndex([5, 1, 1, 7] * 4000)
    index.extend([2, 1, 1])
    began = time.perf_counter()
    for _ in range(200):
        index.propose(4)
    assert (time.perf_counter() - began) / 200 < 0.001
