"""Tokenizer from the metadata of a GGUF file: byte-level BPE ("gpt2") or SentencePiece BPE ("llama").

The lists in the file are checked against each other first, because a damaged or hostile file must end as `InvalidSpec`
and never as an index error. Unknown tokenizers and pre-tokenizers are refused by name: a guess would cut text wrongly
and nobody would see it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader import bpe, spm
from forebay.engine.loader.gguf_file import GgufHeader
from forebay.engine.loader.gguf_metadata import required
from forebay.engine.loader.metadata import FIELD, TokenizerSource

_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_UNUSED: Final = 5
_BYTE: Final = 6
_UNMERGEABLE: Final = (_CONTROL, _UNUSED, _BYTE)
_PREFIX: Final = "tokenizer.ggml"


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """What both kinds have: token texts by id, their GGUF kinds, and the ids with a role."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    add_bos: bool

    def of_kind(self, *kinds: int) -> list[int]:
        return [token for token, kind in enumerate(self.kinds) if kind in kinds]

    @property
    def start_id(self) -> int | None:
        """The token that encoding puts first."""
        return self.bos_id if self.add_bos else None


def read_tokenizer(header: GgufHeader) -> TokenizerSource:
    """Tokenizer of the file; `InvalidSpec` for a tokenizer model or pre-tokenizer that is not known."""
    kind = str(required(header, f"{_PREFIX}.model"))
    if kind not in ("gpt2", "llama"):
        raise _refusal(header, "tokenizer model", kind, "gpt2, llama")
    # SentencePiece vocabularies start with bos unless the file says otherwise.
    vocabulary = _vocabulary(header, adds_bos=kind == "llama")
    document = _byte_level(header, vocabulary) if kind == "gpt2" else _sentence_piece(header, vocabulary)
    tokens, bos_id, eos_ids = vocabulary.tokens, vocabulary.bos_id, vocabulary.eos_ids
    template = header.metadata.get("tokenizer.chat_template")
    return TokenizerSource(
        tokenizer_json=document,
        chat_template=template if isinstance(template, str) else None,
        bos_id=bos_id,
        eos_ids=eos_ids,
        special_tokens={tokens[token]: token for token in vocabulary.of_kind(_CONTROL)},
        bos_token=None if bos_id is None else tokens[bos_id],
        eos_token=tokens[eos_ids[0]] if eos_ids else None,
        add_bos=vocabulary.add_bos,
    )


def _vocabulary(header: GgufHeader, *, adds_bos: bool) -> _Vocabulary:
    tokens = _list(header, "tokens", str)
    kinds = _list(header, "token_type", int) if f"{_PREFIX}.token_type" in header.metadata else [1] * len(tokens)
    _check_length(header, "token_type", kinds, tokens)
    bos_id = _token_id(header, "bos", tokens)
    ends = [_token_id(header, name, tokens) for name in ("eos", "eot")]
    return _Vocabulary(
        tokens=tokens,
        kinds=kinds,
        bos_id=bos_id,
        eos_ids=tuple(dict.fromkeys(token for token in ends if token is not None)),
        add_bos=bool(header.metadata.get(f"{_PREFIX}.add_bos_token", adds_bos)) and bos_id is not None,
    )


def _byte_level(header: GgufHeader, vocabulary: _Vocabulary) -> str:
    pre = str(header.metadata.get(f"{_PREFIX}.pre", "gpt-2"))
    if pre not in bpe.PRE_TOKENIZERS:
        raise _refusal(header, "pre-tokenizer", pre, ", ".join(bpe.PRE_TOKENIZERS))
    merges = _list(header, "merges", str)
    known = set(vocabulary.tokens)
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= known:
            raise _broken(header, f"merge {merge[:80]!r} is not made of tokens of the vocabulary")
    return bpe.tokenizer_document(
        bpe.BpeVocabulary(
            pre_tokenizer=pre,
            tokens=vocabulary.tokens,
            merges=merges,
            special_ids=vocabulary.of_kind(_CONTROL),
            added_ids=vocabulary.of_kind(_USER_DEFINED),
            bos_id=vocabulary.start_id,
        )
    )


def _sentence_piece(header: GgufHeader, vocabulary: _Vocabulary) -> str:
    is_gemma = str(header.metadata.get("general.architecture")).startswith("gemma")
    if is_gemma:
        # Gemma's scores do not follow its merge order; the order of the vocabulary does.
        ranks: Sequence[float] = range(0, -len(vocabulary.tokens), -1)
    else:
        ranks = _list(header, "scores", float)
        _check_length(header, "scores", ranks, vocabulary.tokens)
    return spm.tokenizer_document(
        spm.SpmVocabulary(
            tokens=vocabulary.tokens,
            ranks=ranks,
            special_ids=vocabulary.of_kind(_CONTROL),
            added_ids=vocabulary.of_kind(_USER_DEFINED),
            unmergeable_ids=vocabulary.of_kind(*_UNMERGEABLE),
            unknown_id=_token_id(header, "unknown", vocabulary.tokens),
            bos_id=vocabulary.start_id,
            adds_space=bool(header.metadata.get(f"{_PREFIX}.add_space_prefix", not is_gemma)),
        )
    )


def _list(header: GgufHeader, name: str, item: type) -> list[Any]:
    """A list of the file, of which every item has the type."""
    values = required(header, f"{_PREFIX}.{name}")
    if not isinstance(values, list) or any(type(value) is not item for value in values):
        raise _broken(header, f"{_PREFIX}.{name} is not a list of {item.__name__}")
    return values


def _check_length(header: GgufHeader, name: str, values: Sequence[Any], tokens: Sequence[str]) -> None:
    if len(values) != len(tokens):
        raise _broken(header, f"{_PREFIX}.{name} has {len(values)} entries for {len(tokens)} tokens")


def _token_id(header: GgufHeader, name: str, tokens: Sequence[str]) -> int | None:
    token = header.metadata.get(f"{_PREFIX}.{name}_token_id")
    if token is None:
        return None
    if type(token) is not int or not 0 <= token < len(tokens):
        raise InvalidSpec(
            f"{header.path}: {name} token id {token} is outside the vocabulary of {len(tokens)}", field=FIELD
        )
    return token


def _broken(header: GgufHeader, why: str) -> InvalidSpec:
    return InvalidSpec(f"{header.path}: {why}; convert the model again", field=FIELD)


def _refusal(header: GgufHeader, what: str, found: str, supported: str) -> InvalidSpec:
    return InvalidSpec(
        f"{header.path}: {what} {found!r} is not supported in GGUF (supported: {supported}); "
        "use the model's Hugging Face directory with tokenizer.json",
        field=FIELD,
    )
