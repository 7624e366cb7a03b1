"""SentencePiece tokenizers built from GGUF metadata against transformers' own reading of the same file."""

import random
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer

from forebay.engine.loader.checkpoint import TokenizerSource, read_tokenizer
from reference_models import GEMMA3

CORPUS = [
    "",
    " ",
    "  ",
    "Hello, world!",
    "  leading and   inner   spaces\tand\ttabs  \n\n\nnewlines\r\n",
    "I'm sure they'll say we've done it; DON'T, it's 'quoted'.",
    "In 2024, 3.14159 of 1,000,000 people (42%) paid $99.95 on 12/31.",
    "Zażółć gęślą jaźń, Привет мир, Γειά σου Κόσμε, שלום עולם, مرحبا بالعالم",  # noqa: RUF001 - other scripts on purpose
    "你好，世界！日本語のテキストです。한국어 문장입니다. ราชอาณาจักร हिन्दी",  # noqa: RUF001 - other scripts on purpose
    "emoji 😀👍🏽👨‍👩‍👧‍👦 🇪🇺 and combining e\u0301 a\u0308, zero\u200bwidth, \u00a0nbsp\u2028line",
    "def f(x: int) -> list[str]:\n    return [str(i) for i in range(x) if i % 2 == 0]  # comment\n",
    '{"key": [1, 2.5, null, true], "nested": {"a": "b\\n"}}',
    "<table><tr><td>x</td></tr></table> <h1>T</h1>",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "text with <bos> inside<eos>and <unused7>x [multimodal]",
    "a" * 300 + " " + "ab" * 100,
    "\x00\x01\x7f control \x1b[0m",
    "ﬀ ligature, Å vs Å, ½ fraction \U0001d518 math \U0010ffff rare \ue000 private",
    "▁already ▁▁ spelled▁",
    " " * 40 + "x" + "\n" * 40 + "\t" * 40,
]


@pytest.fixture(scope="module")
def source() -> TokenizerSource:
    return read_tokenizer(GEMMA3.gguf())


@pytest.fixture(scope="module")
def tokenizer(source: TokenizerSource) -> Any:
    return Tokenizer.from_str(source.tokenizer_json)


@pytest.fixture(scope="module")
def oracle() -> Any:
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds of imports that only this fixture needs

    return AutoTokenizer.from_pretrained(GEMMA3.directory())


def random_texts(count: int) -> list[str]:
    """Strings of pieces that meet at awkward places: words, spaces, digits, marks, other scripts, added tokens."""
    picks = random.Random(5)
    pieces = [
        " ",
        "  ",
        "\n",
        "\t",
        "the",
        "The",
        "ing",
        "1",
        "23",
        "é",
        "ß",
        "ж",
        "中",
        "한",
        "😀",
        ".",
        ",",
        "'s",
        '"',
    ]
    pieces += ["<b>", "</b>", "<eos>", "_", "-", "http", "://", "▁", "\u0301", "\u00a0", "\ufeff", "ب", "\U0001f9d1"]
    return ["".join(picks.choices(pieces, k=picks.randrange(1, 40))) for _ in range(count)]


def test_text_encodes_as_in_transformers(tokenizer: Any, oracle: Any) -> None:
    texts = CORPUS + random_texts(400)
    assert [encoding.ids for encoding in tokenizer.encode_batch(texts)] == oracle(texts)["input_ids"]


def test_every_text_survives_a_round_trip(tokenizer: Any) -> None:
    texts = [text for text in CORPUS + random_texts(100) if "▁" not in text]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert max(ids, default=0) < 262_144


def test_decoding_equals_transformers_for_every_single_token(tokenizer: Any, oracle: Any) -> None:
    ids = [[token] for token in range(0, 262_144, 41)]
    ours = tokenizer.decode_batch(ids, skip_special_tokens=True)
    assert ours == oracle.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_text_that_spells_a_control_or_byte_token_never_becomes_it(source: TokenizerSource) -> None:
    as_text = Tokenizer.from_str(source.tokenizer_json)
    as_text.encode_special_tokens = True
    control = set(source.special_tokens.values())
    for text in ("<end_of_turn>", "<start_of_turn>user", "<eos>", "<unused7>"):
        assert not control & set(as_text.encode(text, add_special_tokens=False).ids)
    assert len(as_text.encode("<0x41>", add_special_tokens=False).ids) > 3


def test_ids_come_from_the_file(source: TokenizerSource) -> None:
    assert (source.bos_id, source.bos_token, source.add_bos) == (2, "<bos>", True)
    assert (source.eos_ids, source.eos_token, source.chat_template) == ((1,), "<eos>", None)
    assert source.special_tokens["<end_of_turn>"] == 106


LETTERS = "▁abcdefghijklmnopqrstuvwxyz.,"


def write_llama_vocabulary(path: Path, **changes: Any) -> Path:
    """A llama file with a SentencePiece vocabulary whose scores disagree with its order."""
    words = ["▁t", "he", "▁the", "in", "ing", "▁w", "or", "ld", "▁world", "▁a", "an", "▁an", "th", "er", "▁▁"]
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *words, *LETTERS]
    scores = [*[0.0] * 259, *[-float((7 * place) % len(words)) for place in range(len(words))], *[-1e3] * len(LETTERS)]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(words) + len(LETTERS))]
    fields = {"tokens": tokens, "scores": scores, "token_type": kinds, **changes}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    for name, values in fields.items():
        if isinstance(values, list):
            writer.add_array(f"tokenizer.ggml.{name}", values)
        else:
            writer.add_uint32(f"tokenizer.ggml.{name}", values)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_llama_vocabulary_merges_by_score(tmp_path: Path) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds of imports that only this test needs

    path = write_llama_vocabulary(tmp_path / "llama.gguf")
    source = read_tokenizer(path)
    tokenizer = Tokenizer.from_str(source.tokenizer_json)
    oracle = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    picks = random.Random(3)
    alphabet = ["the", "in", "ing", "world", "an", " ", "  ", "wor", "é", "\n", ".", "th"]
    texts = ["", " the", "the  world", "<s>the</s> in", *("".join(picks.choices(alphabet, k=12)) for _ in range(200))]
    assert [encoding.ids for encoding in tokenizer.encode_batch(texts)] == oracle(texts)["input_ids"]
    assert tokenizer.decode(tokenizer.encode("the world  an", add_special_tokens=False).ids) == "the world  an"
    assert (source.add_bos, source.eos_ids) == (True, (2,))
