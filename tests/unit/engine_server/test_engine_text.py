"""Encoding, chat templates in their sandbox, and the tokens' bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.contract.errors import InvalidRequest, InvalidSpec
from forebay.engine import text as text_module
from forebay.engine.text import ChatTemplate, TextCodec
from text_build import SPECIAL, byte_level_codec, byte_level_tokenizer, fallback_codec, source

MESSAGES = [{"role": "user", "content": "hello"}]


def test_a_conversation_is_rendered_with_the_prompt_for_an_answer() -> None:
    codec = byte_level_codec()
    assert codec.render_chat(MESSAGES) == "<user>hello\n<assistant>"
    assert codec.decode(codec.encode_chat(MESSAGES)) == "<user>hello\n<assistant>"


def test_a_model_without_a_template_refuses_conversations_by_field() -> None:
    with pytest.raises(InvalidRequest, match="no chat template") as refusal:
        byte_level_codec(chat_template=None).encode_chat(MESSAGES)
    assert refusal.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(10**6) %}x{% endfor %}",
        "{{ 'x' * 100000000 }}",
        "{{ 99999999 * 'xx' }}",
        "{{ messages.append(1) }}",
        "{{ 1 + 'a' }}",
        "{{ 1 / 0 }}",
        "{{ '%(missing)s' % {} }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_a_template_that_refuses_or_breaks_out_is_an_invalid_request(template: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        ChatTemplate(source(byte_level_tokenizer(), template)).render(MESSAGES)
    assert refusal.value.param == "messages"


def test_a_rendering_that_grows_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "MAX_RENDERED_CHARS", 1000)
    template = ChatTemplate(source(byte_level_tokenizer(), "{% for i in range(2000) %}xy{% endfor %}"))
    with pytest.raises(InvalidRequest, match="too long"):
        template.render(MESSAGES)


def test_a_template_that_does_not_parse_is_a_bad_model() -> None:
    with pytest.raises(InvalidSpec, match="chat template"):
        ChatTemplate(source(byte_level_tokenizer(), "{% for %}"))


def test_templates_may_write_json_and_the_date() -> None:
    template = ChatTemplate(source(byte_level_tokenizer(), "{{ {'a': '<é>'} | tojson }} {{ strftime_now('%Y') }}"))
    document, year = template.render(MESSAGES).rsplit(" ", 1)
    assert document == '{"a": "<é>"}'
    assert year.isdigit()


def test_special_tokens_never_reach_the_output() -> None:
    for codec in (byte_level_codec(), fallback_codec()):
        ids = codec.encode_text(f"ab{SPECIAL}cd")
        detokenizer = codec.detokenizer()
        assert detokenizer.push(ids) + detokenizer.finish() == codec.decode(ids) == "abcd"


def test_an_unfinished_character_waits_and_ends_as_a_replacement() -> None:
    codec = byte_level_codec()
    first, *others = codec.encode_text("€")
    detokenizer = codec.detokenizer()
    assert detokenizer.push([first]) == ""
    assert detokenizer.push(others[:-1]) == ""
    assert detokenizer.push(others[-1:]) == "€"
    assert detokenizer.push([first]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_token_ids_outside_the_vocabulary_add_nothing() -> None:
    codec = byte_level_codec()
    assert codec.token_bytes(10**6) == b""
    assert isinstance(codec, TextCodec)


@settings(deadline=None)
@given(st.lists(st.sampled_from([SPECIAL, "<|en", "d|>", "hé", " ", "\U000f0000", "7"]), max_size=8).map("".join))
def test_no_message_can_write_a_special_token(content: str) -> None:
    codec = byte_level_codec(chat_template="{% for message in messages %}{{ message['content'] }}<|end|>{% endfor %}")
    ids = codec.encode_chat([{"role": "user", "content": content}, {"role": "user", "content": "b"}])
    end_id = byte_level_tokenizer().token_to_id(SPECIAL)
    assert end_id is not None
    assert ids.count(end_id) == 2, "the template's own two, and no other"
    assert byte_level_tokenizer().decode(ids, skip_special_tokens=False) == f"{content}{SPECIAL}b{SPECIAL}"
