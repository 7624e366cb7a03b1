"""The tokenizer built from GGUF metadata against transformers' own reading of the same file.

transformers drops the pre-tokenizer that the file names and splits by the GPT-2 rule alone; the model's own tokenizer
first isolates every digit. The two differ only on numerals outside ASCII, so those are tested apart.
"""

from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from forebay.engine.loader.bpe import BpeVocabulary, tokenizer_document
from forebay.engine.loader.checkpoint import TokenizerSource, read_tokenizer
from smollm2 import smollm2_directory, smollm2_gguf

CORPUS = [
    "",
    " ",
    "Hello, world!",
    "  leading and   inner   spaces\tand\ttabs  \n\n\nnewlines\r\n",
    "I'm sure they'll say we've done it; DON'T, it's 'quoted'.",
    "In 2024, 3.14159 of 1,000,000 people (42%) paid $99.95 on 12/31.",
    "Zażółć gęślą jaźń, Привет мир, Γειά σου Κόσμε, שלום עולם, مرحبا بالعالم",  # noqa: RUF001 - other scripts on purpose
    "你好，世界！日本語のテキストです。한국어 문장입니다.",  # noqa: RUF001 - other scripts on purpose
    "emoji 😀👍🏽👨‍👩‍👧‍👦 🇪🇺 and combining e\u0301 a\u0308, zero\u200bwidth, \u00a0nbsp\u2028line",
    "def f(x: int) -> list[str]:\n    return [str(i) for i in range(x) if i % 2 == 0]  # comment\n",
    '{"key": [1, 2.5, null, true], "nested": {"a": "b\\n"}}',
    "https://example.com/path?q=a+b&c=%20d#frag <b>HTML</b> &amp; \\backslash\\",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "text with <|im_end|> inside<|endoftext|>and <repo_name>x",
    "ALLCAPS MixedCase snake_case kebab-case CamelCaseWord",
    "a" * 300 + " " + "ab" * 100,
    "\x00\x01\x7f control \x1b[0m",
    "ﬀ ligature, Å vs Å, ½ fraction-free \U0001d518 math",
]


@pytest.fixture(scope="module")
def source() -> TokenizerSource:
    return read_tokenizer(smollm2_gguf())


@pytest.fixture(scope="module")
def tokenizer(source: TokenizerSource) -> Any:
    return Tokenizer.from_str(source.tokenizer_json)


@pytest.fixture(scope="module")
def oracle() -> Any:
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds of imports that only this fixture needs

    return AutoTokenizer.from_pretrained(smollm2_directory())


@pytest.mark.parametrize("text", [text for text in CORPUS if "½" not in text])
def test_text_encodes_as_in_transformers(text: str, tokenizer: Any, oracle: Any) -> None:
    assert tokenizer.encode(text).ids == oracle(text)["input_ids"]


def test_every_text_survives_a_round_trip(tokenizer: Any) -> None:
    for text in CORPUS:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_every_digit_is_split_off_as_the_model_was_trained(tokenizer: Any) -> None:
    assert tokenizer.encode("in 2024").tokens == ["in", "Ġ", "2", "0", "2", "4"]
    assert tokenizer.encode(" ²").tokens == ["Ġ", "Â²"]


def test_decoding_equals_transformers_for_every_single_token(tokenizer: Any, oracle: Any) -> None:
    ids = [[token] for token in range(0, 49152, 7)]
    ours = tokenizer.decode_batch(ids, skip_special_tokens=True)
    assert ours == oracle.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_ids_and_template_come_from_the_file(source: TokenizerSource, oracle: Any) -> None:
    assert source.eos_ids == (oracle.eos_token_id,)
    assert (source.bos_token, source.eos_token, source.add_bos) == ("<|im_start|>", "<|im_end|>", False)
    assert source.chat_template == oracle.chat_template
    assert len(source.special_tokens) == 17
    assert source.special_tokens["<|endoftext|>"] == 0


def test_a_vocabulary_that_wants_a_beginning_token_gets_one() -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = BpeVocabulary("llama-bpe", [*letters, "<s>", "hi"], ["h i"], [256], [], bos_id=256)
    tokenizer = Tokenizer.from_str(tokenizer_document(vocabulary))
    assert tokenizer.encode("hi").ids == [256, 257]
    assert tokenizer.encode("hi", add_special_tokens=False).ids == [257]
    assert [text for text, _ in tokenizer.pre_tokenizer.pre_tokenize_str("abc 12345 d'S")] == [
        "abc",
        "Ġ",
        "123",
        "45",
        "Ġd",
        "'S",
    ]
