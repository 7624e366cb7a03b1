"""Small tokenizers for tests of text handling: byte-level BPE with a few merges, and one with byte fallback."""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from forebay.engine.loader.metadata import TokenizerSource
from forebay.engine.text import TextCodec

SPECIAL = "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def source(tokenizer: Tokenizer, chat_template: str | None = CHAT_TEMPLATE) -> TokenizerSource:
    """A tokenizer source around a tokenizer that has the special token."""
    end_id = int(tokenizer.token_to_id(SPECIAL) or 0)
    return TokenizerSource(
        tokenizer_json=tokenizer.to_str(),
        chat_template=chat_template,
        bos_id=None,
        eos_ids=(end_id,),
        special_tokens={SPECIAL: end_id},
        bos_token=None,
        eos_token=SPECIAL,
        add_bos=False,
    )


def byte_level_tokenizer() -> Tokenizer:
    """Every byte is a token; some merges make tokens that end inside a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: place for place, char in enumerate(alphabet)}
    merges = [("h", "e"), ("l", "l"), ("Ã", "©"), ("ð", "Ł"), ("ðŁ", "ĺ"), ("e", "Ã")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(SPECIAL, special=True)])
    return tokenizer


def fallback_tokenizer() -> Tokenizer:
    """Letters and spaces as tokens, every other byte through byte fallback, as sentence-piece models have it."""
    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    for char in "▁abcdefgh":
        vocabulary[char] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(SPECIAL, special=True)])
    return tokenizer


def byte_level_codec(chat_template: str | None = CHAT_TEMPLATE) -> TextCodec:
    """A codec over `byte_level_tokenizer`."""
    return TextCodec(source(byte_level_tokenizer(), chat_template))


def fallback_codec() -> TextCodec:
    """A codec over `fallback_tokenizer`."""
    codec = TextCodec(source(fallback_tokenizer()))
    assert not codec.is_byte_level
    assert json.loads(fallback_tokenizer().to_str())["model"]["byte_fallback"]
    return codec
