"""Matchers as the runner uses them: masks, stop tokens, rollback, reasoning, and both libraries alike."""

import time

import numpy as np
import pytest

from forebay.engine.structured.after_reasoning import AfterReasoning
from forebay.engine.structured.matcher import GrammarFault, Matcher
from forebay.engine.structured.outcome import structured_end
from forebay.engine.structured.reasoning import reasoning_end
from forebay.engine.structured.source import GrammarSource, SourceKind
from forebay.engine.structured.store import GrammarStore
from forebay.engine.structured.vocabulary import Vocabulary
from grammar_walk import TIGHT, Walker, schema_source

PAIR = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}


@pytest.fixture(scope="module")
def walker() -> Walker:
    return Walker.small()


def mask_of(walker: Walker, matcher: Matcher) -> set[int]:
    mask = np.zeros(walker.vocabulary.words, np.int32)
    matcher.fill(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def test_rollback_restores_every_mask(walker: Walker) -> None:
    matcher = walker.open(schema_source(PAIR))()
    tokens = [*walker.codec.encode_text("[true,false]"), walker.end]
    masks = []
    for token in tokens:
        masks.append(mask_of(walker, matcher))
        assert matcher.accept(token)
    for back in range(1, len(tokens) + 1):
        matcher.rollback(back)
        assert mask_of(walker, matcher) == masks[-back]
        for token in tokens[-back:]:
            assert matcher.accept(token)


def test_stop_tokens_are_legal_exactly_when_the_answer_is_complete(walker: Walker) -> None:
    matcher = walker.open(schema_source(PAIR))()
    for token in walker.codec.encode_text("[true,true]"):
        assert walker.end not in mask_of(walker, matcher)
        assert not matcher.complete
        assert not matcher.accept(walker.end)
        assert matcher.accept(token)
    assert matcher.complete
    assert mask_of(walker, matcher) == {walker.end}
    assert matcher.accept(walker.end)
    with pytest.raises(GrammarFault, match="has ended"):
        mask_of(walker, matcher)


def test_a_wrong_token_changes_nothing(walker: Walker) -> None:
    matcher = walker.open(schema_source(PAIR))()
    before = mask_of(walker, matcher)
    assert not matcher.accept(walker.codec.encode_text("z")[0])
    assert mask_of(walker, matcher) == before


def store_of(walker: Walker) -> GrammarStore:
    return GrammarStore(lambda: walker.vocabulary)


def built(store: GrammarStore) -> list[tuple[str, str]]:
    deadline = time.monotonic() + 60
    ended: list[tuple[str, str]] = []
    while store.building and time.monotonic() < deadline:
        ended += store.finished()
        time.sleep(0.001)
    return ended


def test_the_store_builds_beside_and_opens_fresh_matchers(walker: Walker) -> None:
    store = store_of(walker)
    store.put("good", "llguidance", 'start: "yes" | "no"')
    store.put("bad", "llguidance", "start: (")
    ended = dict(built(store))
    assert ended["good"] == ""
    assert "does not compile" in ended["bad"]
    first, second = store.open("good"), store.open("good")
    assert first.accept(walker.codec.encode_text("y")[0])
    assert mask_of(walker, second) >= set(walker.codec.encode_text("n"))
    for missing in ("bad", "other"):
        with pytest.raises(GrammarFault):
            store.open(missing)
    store.drop("good")
    with pytest.raises(GrammarFault):
        store.open("good")
    assert first.accept(walker.codec.encode_text("e")[0])
    store.close()


def test_a_custom_stop_token_ends_only_a_complete_answer(walker: Walker) -> None:
    store = store_of(walker)
    store.put("key", "llguidance", 'start: "ab"')
    built(store)
    (stop,) = walker.codec.encode_text("b")
    matcher = store.open("key", [stop])
    assert matcher.accept(walker.codec.encode_text("a")[0])
    assert stop not in mask_of(walker, store.open("key", [stop]))
    assert not matcher.accept(stop)


def test_a_grammar_starts_after_reasoning_and_a_rollback_may_cross_its_start(walker: Walker) -> None:
    inner = walker.open(schema_source({"const": 1}))()
    end = tuple(walker.codec.encode_text("</t>"))
    matcher = AfterReasoning(inner, end, [walker.end], walker.vocabulary.size)
    thought = walker.codec.encode_text("hm </t")
    for token in thought:
        assert len(mask_of(walker, matcher)) == walker.vocabulary.words * 32 - 1
        assert not matcher.accept(walker.end)
        assert matcher.accept(token)
    assert matcher.accept(end[-1])
    (one,) = walker.codec.encode_text("1")
    assert mask_of(walker, matcher) == {one}
    assert matcher.accept(one)
    assert matcher.complete
    matcher.rollback(2)
    assert not matcher.complete
    assert matcher.accept(end[-1])
    assert mask_of(walker, matcher) == {one}


def test_reasoning_is_open_unless_the_prompt_closes_it(walker: Walker) -> None:
    encode = walker.codec.encode_text
    assert reasoning_end("{{ messages }}", "<assistant>", encode) == ()
    template = "{% if x %}<think></think>{% endif %}"
    assert reasoning_end(template, "<assistant>", encode) == tuple(encode("</think>"))
    assert reasoning_end(template, "<assistant><think>\n", encode) == tuple(encode("</think>"))
    assert reasoning_end(template, "<assistant><think>\n\n</think>\n\n", encode) == ()


@pytest.mark.parametrize(
    ("text", "is_json", "by_token", "finish", "incomplete"),
    [
        ('{"a": 1}', True, True, "stop", False),
        ('{"a": 1}', True, False, "stop", False),
        ('{"a": 1', True, False, "length", True),
        ('{"a": "}"', True, False, "length", True),
        ("12", True, False, "length", True),
        ("12", True, True, "stop", False),
        ("{}", False, False, "length", True),
        ("", True, False, "length", True),
    ],
)
def test_stop_means_complete(text: str, is_json: bool, by_token: bool, finish: str, incomplete: bool) -> None:
    end = structured_end(text, is_json=is_json, ended_by_token=by_token)
    assert (end.finish_reason, end.incomplete) == (finish, incomplete)
    assert end.fields() == ({"forebay": {"incomplete": True}} if incomplete else {})


def test_a_hostile_grammar_ends_its_request_and_not_the_process() -> None:
    walker = Walker.small()
    pattern = "^(a|b|ab|ba|aab|bba){0,4000}c(x|y|xy){0,4000}$"
    matcher = walker.open(GrammarSource(SourceKind.REGEX, pattern, "regex", "auto", TIGHT))()
    began = time.monotonic()
    try:
        for _ in range(200):
            allowed = sorted(mask_of(walker, matcher) - {walker.end})
            if not allowed:
                break
            assert matcher.accept(allowed[0])
    except GrammarFault as error:
        assert error.message  # noqa: PT017 - both ends are right, a crash or a hang is not
    assert time.monotonic() - began < 60


def test_a_model_without_an_end_token_is_refused() -> None:
    with pytest.raises(Exception, match="end-of-text"):
        Vocabulary("{}", 10, ())
