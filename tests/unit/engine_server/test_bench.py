"""The load generator's reading of responses, and its sums."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_rows import Row, Sample, Samples, steady_inter_token_s
from forebay.contract.errors import InvalidSpec
from forebay.engine.bench import Answer, Plan, parse_answer, quantiles, random_prompts, summarize, target_of

EVENTS = [
    b'data: {"choices": [{"text": "a"}]}\n\n',
    b'data: {"choices": [{"text": "\\r\\nb"}]}\n\n',
    b'data: {"choices": [], "usage": {"completion_tokens": 2}}\n\n',
    b"data: [DONE]\n\n",
]
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def response(*, is_chunked: bool) -> bytes:
    """A whole stream of two tokens."""
    if not is_chunked:
        return PLAIN_HEAD + b"".join(EVENTS)
    return CHUNKED_HEAD + b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in EVENTS) + b"0\r\n\r\n"


@given(st.booleans(), st.lists(st.integers(1, 400), max_size=12))
def test_an_answer_reads_the_same_however_it_was_cut(is_chunked: bool, cuts: list[int]) -> None:
    whole = response(is_chunked=is_chunked)
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [(float(begin), whole[begin:end]) for begin, end in itertools.pairwise(places)]
    answer = parse_answer(-1.0, pieces)
    assert (answer.status, answer.tokens, answer.text, answer.problem) == (200, 2, "a\r\nb", "")
    assert len(answer.times_s) == 2
    assert answer.times_s[0] <= answer.times_s[1]


@pytest.mark.parametrize("lost", [1, 20, 100])
def test_a_stream_that_ends_early_is_a_problem(lost: int) -> None:
    whole = response(is_chunked=False)
    assert parse_answer(0.0, [(1.0, whole[: -len(EVENTS[-1]) - lost])]).problem == "the stream ended early"


def test_an_error_in_the_stream_and_a_refusal_are_problems() -> None:
    told = PLAIN_HEAD + EVENTS[0] + b'data: {"error": {"message": "the engine failed"}}\n\n'
    assert "the engine failed" in parse_answer(0.0, [(1.0, told)]).problem
    refused = parse_answer(0.0, [(1.0, b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nbusy")])
    assert (refused.status, refused.text, refused.problem) == (429, "busy", "status 429: busy")
    assert parse_answer(0.0, []).problem


def test_failed_requests_count_in_no_figure_but_their_own() -> None:
    good = [Answer(200, 0.0, (0.5, 1.0, 1.5), 3, "abc", ""), Answer(200, 1.0, (2.0, 3.0), 2, "ab", "")]
    report = summarize([*good, Answer(0, 0.0, (), 0, "", "refused")], 0.1)
    assert (report.requests, report.failed, report.problems) == (3, 1, ("refused",))
    assert (report.wall_s, report.output_tokens) == (3.0, 5)
    assert report.inter_token_s.p50 == 0.5
    assert report.first_token_s.p99 == 1.0
    json.dumps(report.problems)


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_quantiles_are_values_and_rise(values: list[float]) -> None:
    spread = quantiles(values)
    assert {spread.p50, spread.p95, spread.p99} <= set(values)
    assert min(values) <= spread.p50 <= spread.p95 <= spread.p99 <= max(values)


def test_prompts_depend_on_the_seed_alone() -> None:
    assert random_prompts(2, 8, 5) == random_prompts(2, 8, 5) != random_prompts(2, 8, 6)


@pytest.mark.parametrize("url", ["", "ftp://h", "h:80", "http://"])
def test_a_url_without_a_server_is_refused(url: str) -> None:
    with pytest.raises(InvalidSpec):
        target_of(url, "m")
    assert target_of("https://h/base/", "m").url == "https://h:443/base"
    with pytest.raises(InvalidSpec, match="--requests"):
        Plan(0, 1, 1, 1, 0)


def test_a_row_is_held_against_its_target_in_its_own_direction() -> None:
    samples = Samples()
    for side, rate in (("ours", 30.0), ("ours", 10.0), ("ours", 20.0), ("peer", 10.0)):
        samples.add(Sample(side, "w", rate, 0.0, 0.0))
    ratio, measured = samples.compare(("ours", "peer"), "w", "output_tokens_per_s")
    assert (ratio, measured["ours"]["maximum"]) == (2.0, 30.0)
    assert Row("r", "", "ratio", ratio, 1.5).reached is True
    assert Row("r", "", "ratio", ratio, 1.5, is_upper_bound=True).reached is False
    assert Row("r", "", "ratio", ratio).document()["reached"] is None


def test_only_gaps_while_all_decode_count() -> None:
    assert steady_inter_token_s([(0.0, 9.0, 10.0, 11.0, 12.0), (10.0, 11.0, 12.0, 40.0)]) == 1.0
