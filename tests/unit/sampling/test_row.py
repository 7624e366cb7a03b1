"""One sequence's row: grammar masks, stop tokens, minimum lengths, penalties and log probabilities."""

import math

import numpy as np
import pytest

from forebay.engine.request import SamplingParams
from forebay.engine.sampling.masks import empty_mask, forbid, mask_of
from forebay.engine.structured.matcher import GrammarFault
from sampling_build import Floats, choose, make_row
from toy_matcher import BrokenMatcher, ToyMatcher

VOCAB = 50
RANDOM = np.random.default_rng(2)
LOGITS: Floats = RANDOM.standard_normal(VOCAB).astype(np.float32)
STOP = 12


def test_plain_greedy_rows_say_so_and_others_do_not() -> None:
    assert make_row(SamplingParams(seed=3, top_k=4), VOCAB, stop_ids=(1,)).greedy_only
    others = [
        SamplingParams(temperature=0.1),
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(presence_penalty=0.1),
        SamplingParams(frequency_penalty=-0.1),
        SamplingParams(logit_bias=((1, 1.0),)),
        SamplingParams(top_logprobs=0),
        SamplingParams(min_tokens=1),
    ]
    assert not any(make_row(params, VOCAB).greedy_only for params in others)
    assert not make_row(SamplingParams(), VOCAB, matcher=ToyMatcher(VOCAB, 1, 2)).greedy_only


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_every_token_is_one_that_the_grammar_allows_and_then_only_a_stop_token(temperature: float) -> None:
    matcher = ToyMatcher(VOCAB, 3, 9)
    row = make_row(SamplingParams(temperature), VOCAB, stop_ids=(STOP,), matcher=matcher)
    for place in range(9):
        token = choose(row, LOGITS, float(RANDOM.random()))
        assert token % 3 == place % 3
        assert token != STOP, "a stop token may not come before the grammar is complete"
        row.accept(token)
    assert choose(row, LOGITS) == STOP
    row.accept(STOP)
    assert 0 <= choose(row, LOGITS) < VOCAB, "a step that was in flight already gives some token"


def test_a_grammar_that_can_only_end_ends_before_min_tokens() -> None:
    row = make_row(SamplingParams(min_tokens=9), VOCAB, stop_ids=(STOP,), matcher=ToyMatcher(VOCAB, 1, 0))
    assert choose(row, LOGITS) == STOP


def test_a_grammar_without_a_way_on_is_a_fault() -> None:
    row = make_row(SamplingParams(), VOCAB, matcher=ToyMatcher(VOCAB, 1, 0))
    with pytest.raises(GrammarFault, match="no token"):
        choose(row, LOGITS)


def test_a_token_that_the_grammar_does_not_know_is_a_fault() -> None:
    row = make_row(SamplingParams(), VOCAB, matcher=ToyMatcher(VOCAB, 2, 9))
    with pytest.raises(GrammarFault, match="does not allow token 1"):
        row.accept(1)


def test_stop_tokens_cannot_come_before_min_tokens() -> None:
    logits = LOGITS.copy()
    logits[[STOP, 13]] = [30.0, 20.0]
    row = make_row(SamplingParams(min_tokens=2), VOCAB, stop_ids=(STOP, 13))
    free = int(LOGITS.argmax())
    for expected in (free, free, STOP):
        assert choose(row, logits) == expected
        row.accept(expected)


def test_stop_tokens_that_are_the_whole_vocabulary_may_come() -> None:
    assert choose(make_row(SamplingParams(min_tokens=2), VOCAB, stop_ids=range(VOCAB)), LOGITS) == LOGITS.argmax()


def test_drafts_are_cut_where_the_grammar_ends_them_and_the_grammar_does_not_move() -> None:
    matcher = ToyMatcher(VOCAB, 3, 5)
    row = make_row(SamplingParams(), VOCAB, stop_ids=(STOP,), matcher=matcher)
    row.accept(0)
    for drafts, legal in [
        ([4, 5, 6, 7], 4),
        ([4, 5, 6, 7, 8], 4),
        ([4, 5, 5], 2),
        ([3], 0),
        ([4, STOP], 1),
        ([4, VOCAB + 4], 1),
        ([], 0),
    ]:
        assert row.legal_prefix(drafts) == legal
        assert matcher.accepted == [0]


def test_the_greedy_token_is_the_likeliest_that_the_grammar_allows() -> None:
    noise = np.random.default_rng(5)
    for _ in range(50):
        matcher = ToyMatcher(VOCAB, 3, 5)
        row = make_row(SamplingParams(), VOCAB, stop_ids=(STOP,), matcher=matcher)
        for _ in range(4):
            logits = noise.normal(size=VOCAB).astype(np.float32)
            accepted = list(matcher.accepted)
            mask = np.zeros((VOCAB + 31) // 32, np.int32)
            matcher.fill(mask)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB])
            legal = [token for token in allowed if token != STOP or matcher.complete]
            token = choose(row, logits)
            assert token == legal[int(logits[legal].argmax())]
            assert matcher.accepted == accepted
            if token == STOP:
                break
            row.accept(token)


def test_a_matcher_that_breaks_down_is_a_fault_of_the_row() -> None:
    row = make_row(SamplingParams(temperature=0.5), VOCAB, matcher=BrokenMatcher(VOCAB, 2))
    for _ in range(2):
        row.accept(choose(row, LOGITS))
    with pytest.raises(GrammarFault, match="broke down"):
        choose(row, LOGITS)


def test_log_probabilities_are_of_the_model_and_not_of_the_draw() -> None:
    params = SamplingParams(0.5, 1, logit_bias=((3, 100.0),), repetition_penalty=2.0, top_logprobs=4)
    row = make_row(params, VOCAB, prompt=(5, 6))
    token, found = row.choose(LOGITS, 0.5, np.empty_like(LOGITS))
    exact = LOGITS.astype(np.float64) - np.log(np.exp(LOGITS.astype(np.float64)).sum())
    order = sorted(range(VOCAB), key=lambda one: (-LOGITS[one], one))
    assert token == 3
    assert found is not None
    assert found.logprob == pytest.approx(exact[3], abs=1e-6)
    assert [one for one, _ in found.top] == order[:4]
    assert [value for _, value in found.top] == pytest.approx(exact[order[:4]], abs=1e-6)


def test_ties_among_the_top_log_probabilities_are_by_id() -> None:
    row = make_row(SamplingParams(top_logprobs=5), VOCAB)
    _, found = row.choose(np.zeros(VOCAB, dtype=np.float32), 0.5, np.empty(VOCAB, dtype=np.float32))
    assert found is not None
    assert [token for token, _ in found.top] == list(range(5))
    assert [value for _, value in found.top] == pytest.approx([-math.log(VOCAB)] * 5)


def test_bias_and_prompt_tokens_outside_of_the_vocabulary_are_ignored() -> None:
    params = SamplingParams(logit_bias=((VOCAB, 100.0), (-1, 100.0)), repetition_penalty=1.5)
    assert choose(make_row(params, VOCAB, prompt=(VOCAB + 3,)), LOGITS) == LOGITS.argmax()


def test_counts_grow_with_the_text() -> None:
    random = np.random.default_rng(1)
    output = random.integers(0, 5000, 3000).tolist()
    logits = random.standard_normal(5000).astype(np.float32)
    row = make_row(SamplingParams(frequency_penalty=1.0, presence_penalty=0.5), 5000, output=output)
    counts = np.bincount(output, minlength=5000)
    assert choose(row, logits) == int((logits - counts - 0.5 * (counts > 0)).argmax())


@pytest.mark.parametrize("vocab", [31, 32, 33, 1000])
@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 0.97, 1.0])
def test_a_mask_forbids_exactly_what_it_leaves_out(vocab: int, share: float) -> None:
    random = np.random.default_rng(vocab)
    allowed = np.flatnonzero(random.random(vocab) < share)
    logits = random.standard_normal(vocab).astype(np.float32)
    expected = np.full(vocab, -np.inf, dtype=np.float32)
    expected[allowed] = logits[allowed]
    changed = logits.copy()
    forbid(changed, mask_of(allowed.tolist(), vocab))
    assert np.array_equal(changed, expected)


def test_a_mask_shorter_than_the_vocabulary_forbids_the_rest() -> None:
    logits = np.ones(100, dtype=np.float32)
    mask = empty_mask(64)
    mask[:] = -1
    forbid(logits, mask)
    assert np.isfinite(logits).tolist() == [True] * 64 + [False] * 36
