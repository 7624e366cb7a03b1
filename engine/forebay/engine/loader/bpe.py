"""A `tokenizers` document for byte-level BPE vocabularies whose parts are stored in GGUF metadata.

GGUF names the pre-tokenizer instead of describing it; each known name is written out here as the split rules of the
model's own tokenizer. The document is built as JSON, so neither transformers nor a conversion cache is needed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from forebay.engine.loader.spm import added_token, start_processor

_BYTE_LEVEL: Final = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES_ONLY: Final = {**_BYTE_LEVEL, "use_regex": False}
# Contractions, words with one leading symbol, digit groups of at most three, punctuation runs, then white space.
_LLAMA3_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# As above, with one digit a word.
_QWEN2_WORDS: Final = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_DIGITS: Final = {"type": "Digits", "individual_digits": True}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


PRE_TOKENIZERS: Final = {
    "gpt-2": _BYTE_LEVEL,
    "smollm": _sequence(_DIGITS, _BYTE_LEVEL),
    "llama-bpe": _sequence(_split(_LLAMA3_WORDS), _BYTES_ONLY),
    "qwen2": _sequence(_split(_QWEN2_WORDS), _BYTES_ONLY),
}


@dataclass(frozen=True, slots=True)
class BpeVocabulary:
    """Parts of a byte-level BPE tokenizer: token texts by id, merges "left right" in rank order, added tokens."""

    pre_tokenizer: str
    tokens: Sequence[str]
    merges: Sequence[str]
    special_ids: Sequence[int]
    added_ids: Sequence[int]
    bos_id: int | None


def tokenizer_document(vocabulary: BpeVocabulary) -> str:
    """JSON that `tokenizers.Tokenizer.from_str` reads. `bos_id` set means that encoding starts with that token."""
    special = set(vocabulary.special_ids)
    added = [
        added_token(token, vocabulary.tokens[token], is_special=token in special)
        for token in sorted(special | set(vocabulary.added_ids))
    ]
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": {"type": "NFC"} if vocabulary.pre_tokenizer == "qwen2" else None,
            "pre_tokenizer": PRE_TOKENIZERS[vocabulary.pre_tokenizer],
            "post_processor": start_processor(vocabulary.tokens, vocabulary.bos_id),
            "decoder": _BYTE_LEVEL,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": vocabulary.pre_tokenizer == "llama-bpe",
                "vocab": {text: token for token, text in enumerate(vocabulary.tokens)},
                "merges": list(vocabulary.merges),
            },
        },
        ensure_ascii=False,
    )
