"""A `tokenizers` document for SentencePiece BPE vocabularies whose parts are stored in GGUF metadata.

Such a file lists tokens and scores but no merges: a merge is any cut of a token into two others, better tokens first.
Characters outside the vocabulary fall back to byte tokens. Control, unused and byte tokens are never the result of
merges: text that spells one must not become it. Built as JSON, so neither transformers nor sentencepiece is needed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_SPACE: Final = "\u2581"


@dataclass(frozen=True, slots=True)
class SpmVocabulary:
    """Parts of a SentencePiece BPE tokenizer.

    `tokens` by id; `ranks` orders merges, the greatest first. `special_ids` and `added_ids` are matched whole in the
    text; `unmergeable_ids` are never made of parts. `adds_space`: text is read as if a space came before it.
    """

    tokens: Sequence[str]
    ranks: Sequence[float]
    special_ids: Sequence[int]
    added_ids: Sequence[int]
    unmergeable_ids: Sequence[int]
    unknown_id: int | None
    bos_id: int | None
    adds_space: bool


def tokenizer_document(vocabulary: SpmVocabulary) -> str:
    """JSON that `tokenizers.Tokenizer.from_str` reads. `bos_id` set means that encoding starts with that token."""
    tokens = [_SPACE * len(token) if token and not token.strip(" ") else token for token in vocabulary.tokens]
    special = set(vocabulary.special_ids)
    # A run of spaces is found by merges like any word: as a whole it would match before spaces are respelled.
    added = [
        added_token(token, tokens[token], is_special=token in special)
        for token in sorted(special | set(vocabulary.added_ids))
        if tokens[token] == vocabulary.tokens[token]
    ]
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            **_spelling(vocabulary.adds_space),
            "post_processor": start_processor(vocabulary.tokens, vocabulary.bos_id),
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None if vocabulary.unknown_id is None else tokens[vocabulary.unknown_id],
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": True,
                "byte_fallback": True,
                "ignore_merges": False,
                "vocab": {text: token for token, text in enumerate(tokens)},
                "merges": _merges(tokens, vocabulary.ranks, set(vocabulary.unmergeable_ids)),
            },
        },
        ensure_ascii=False,
    )


def _merges(tokens: Sequence[str], ranks: Sequence[float], unmergeable: set[int]) -> list[tuple[str, str]]:
    """Every cut of a token into two tokens: greatest rank first, then the longest left part."""
    known = {text for token, text in enumerate(tokens) if token not in unmergeable}
    by_rank = sorted((token for token in range(len(tokens)) if tokens[token] in known), key=lambda token: -ranks[token])
    return [
        (text[:cut], text[cut:])
        for text in (tokens[token] for token in by_rank if token not in unmergeable)
        for cut in range(len(text) - 1, 0, -1)
        if text[:cut] in known and text[cut:] in known
    ]


def _spelling(adds_space: bool) -> dict[str, Any]:
    """How spaces become part of tokens and leave them again."""
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if not adds_space:
        return {
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
        }
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": "first", "split": False},
        "decoder": {"type": "Sequence", "decoders": [*decoders, strip]},
    }


def added_token(token: int, text: str, *, is_special: bool) -> dict[str, Any]:
    """One token that is matched whole, as an entry of the document."""
    return {
        "id": token,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": is_special,
    }


def start_processor(tokens: Sequence[str], bos_id: int | None) -> dict[str, Any] | None:
    """Puts the beginning-of-text token before every text; None without one."""
    if bos_id is None:
        return None
    text = tokens[bos_id]
    start = {"SpecialToken": {"id": text, "type_id": 0}}
    first = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [start, first],
        "pair": [start, first, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": [bos_id], "tokens": [text]}},
    }
