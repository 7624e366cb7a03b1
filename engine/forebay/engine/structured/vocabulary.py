"""The model's vocabulary as the grammar libraries want it. Imports a library only when its form is asked for.

Both the compile process and the core build these once; they take a third of a second (llguidance) and about two
seconds with the import (xgrammar). Token texts are bytes: what a token adds to the answer.
"""

import functools
import json
from pathlib import Path
from typing import Any

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader.checkpoint import read_tokenizer

_BYTE_FALLBACK = 1
_BYTE_LEVEL = 2


class Vocabulary:
    """Tokens of one model. `size` is the width of its logits; ids without a token can never be chosen."""

    def __init__(self, tokenizer_json: str, size: int, eos_ids: tuple[int, ...]) -> None:
        if not eos_ids:
            raise InvalidSpec("the model names no end-of-text token; structured output needs one", field="model")
        self.size = size
        self.eos_ids = eos_ids
        self._tokenizer_json = tokenizer_json

    @classmethod
    def of_model(cls, model: Path, size: int, eos_ids: tuple[int, ...]) -> "Vocabulary":
        """The vocabulary of the checkpoint at a resolved path."""
        return cls(read_tokenizer(model).tokenizer_json, size, eos_ids)

    @property
    def words(self) -> int:
        """Words of 32 bits in a mask."""
        return (self.size + 31) // 32

    @functools.cached_property
    def llguidance(self) -> Any:
        """The `LLTokenizer`; it may be used from any thread."""
        import llguidance  # noqa: PLC0415 - 0.1 s, and only for structured output

        return llguidance.LLTokenizer(self._tokenizer_json, n_vocab=self.size, eos_token=list(self.eos_ids))

    @functools.cached_property
    def xgrammar(self) -> Any:
        """The `TokenizerInfo`; special tokens have empty text and so match nothing."""
        import xgrammar  # noqa: PLC0415 - imports torch and transformers: 2 s and more

        document = json.loads(self._tokenizer_json)
        tokens: list[bytes | str] = [""] * self.size
        for token, text in _texts(document):
            if token < self.size:
                tokens[token] = text
        is_byte_level = '"ByteLevel"' in json.dumps(document.get("decoder"))
        metadata = {
            "vocab_type": _BYTE_LEVEL if is_byte_level else _BYTE_FALLBACK,
            "vocab_size": self.size,
            "add_prefix_space": False,
            "stop_token_ids": list(self.eos_ids),
        }
        return xgrammar.TokenizerInfo.from_vocab_and_metadata(tokens, json.dumps(metadata))


def _texts(document: dict[str, Any]) -> list[tuple[int, str]]:
    """Ids and texts of all tokens that can be part of an answer."""
    vocabulary = document["model"]["vocab"]
    added = document.get("added_tokens", [])
    if isinstance(vocabulary, dict):
        texts = [(token, text) for text, token in vocabulary.items()]
    else:
        texts = [(token, entry[0]) for token, entry in enumerate(vocabulary)]
    return texts + [(item["id"], "" if item["special"] else item["content"]) for item in added]
