"""Model configuration and tokenizer from the metadata of a GGUF file.

Keys are the ones of the GGUF specification (`<architecture>.block_count`, `tokenizer.ggml.tokens`, ...). Anything this
engine would compute wrongly (experts, unknown rope scaling, unknown pre-tokenizers) is refused by name here.
"""

from typing import Any, Final

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader.bpe import PRE_TOKENIZERS, BpeVocabulary, tokenizer_document
from forebay.engine.loader.gguf_file import GgufHeader
from forebay.engine.loader.metadata import (
    FIELD,
    SUPPORTED_ARCHITECTURES,
    ModelConfig,
    RopeScaling,
    TokenizerSource,
    check_config,
    refuse_architecture,
)

_CONTROL_TOKEN: Final = 3
_USER_DEFINED_TOKEN: Final = 4


def read_config(header: GgufHeader) -> ModelConfig:
    """Configuration in the header of a llama-family file; `InvalidSpec` names a missing key or unsupported value."""
    architecture = str(_required(header, "general.architecture"))
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise refuse_architecture(architecture, str(header.path))
    if _optional(header, f"{architecture}.expert_count", 0):
        raise refuse_architecture(f"{architecture} with experts", str(header.path))
    hidden, heads = _integer(header, "embedding_length"), _integer(header, "attention.head_count")
    head_dim = int(_optional(header, f"{architecture}.attention.key_length", hidden // max(heads, 1)))
    if int(_optional(header, f"{architecture}.rope.dimension_count", head_dim)) != head_dim:
        raise InvalidSpec(f"{header.path}: partial rotary positions are not supported for llama", field=FIELD)
    return check_config(
        ModelConfig(
            architecture=architecture,
            layers=_integer(header, "block_count"),
            hidden=hidden,
            heads=heads,
            kv_heads=int(_optional(header, f"{architecture}.attention.head_count_kv", heads)),
            head_dim=head_dim,
            intermediate=_integer(header, "feed_forward_length"),
            vocab=_vocabulary_rows(header),
            rope_theta=float(_optional(header, f"{architecture}.rope.freq_base", 10000.0)),
            rms_eps=_single(float(_required(header, f"{architecture}.attention.layer_norm_rms_epsilon"))),
            max_positions=_integer(header, "context_length"),
            tied_embeddings="output.weight" not in header.tensors,
            attention_bias="blk.0.attn_q.bias" in header.tensors,
            mlp_bias="blk.0.ffn_up.bias" in header.tensors,
            rope_scaling=_rope_scaling(header, architecture),
        ),
        str(header.path),
    )


def read_tokenizer(header: GgufHeader) -> TokenizerSource:
    """Tokenizer of the file; `InvalidSpec` for a tokenizer model or pre-tokenizer that is not known."""
    kind = str(_required(header, "tokenizer.ggml.model"))
    if kind != "gpt2":
        raise InvalidSpec(
            f"{header.path}: tokenizer model {kind!r} is not supported in GGUF (supported: gpt2); "
            "use the model's Hugging Face directory with tokenizer.json",
            field=FIELD,
        )
    pre = str(_optional(header, "tokenizer.ggml.pre", "gpt-2"))
    if pre not in PRE_TOKENIZERS:
        raise InvalidSpec(
            f"{header.path}: pre-tokenizer {pre!r} is not supported in GGUF (supported: {', '.join(PRE_TOKENIZERS)}); "
            "use the model's Hugging Face directory with tokenizer.json",
            field=FIELD,
        )
    tokens: list[str] = _required(header, "tokenizer.ggml.tokens")
    kinds: list[int] = _optional(header, "tokenizer.ggml.token_type", [1] * len(tokens))
    special = [token for token, kind_number in enumerate(kinds) if kind_number == _CONTROL_TOKEN]
    bos_id = _token_id(header, "bos", tokens)
    add_bos = bool(_optional(header, "tokenizer.ggml.add_bos_token", False)) and bos_id is not None
    eos = [_token_id(header, name, tokens) for name in ("eos", "eot")]
    eos_ids = tuple(dict.fromkeys(token for token in eos if token is not None))
    document = tokenizer_document(
        BpeVocabulary(
            pre_tokenizer=pre,
            tokens=tokens,
            merges=_required(header, "tokenizer.ggml.merges"),
            special_ids=special,
            added_ids=[token for token, kind_number in enumerate(kinds) if kind_number == _USER_DEFINED_TOKEN],
            bos_id=bos_id if add_bos else None,
        )
    )
    return TokenizerSource(
        tokenizer_json=document,
        chat_template=_optional(header, "tokenizer.chat_template", None),
        bos_id=bos_id,
        eos_ids=eos_ids,
        special_tokens={tokens[token]: token for token in special},
        bos_token=None if bos_id is None else tokens[bos_id],
        eos_token=tokens[eos_ids[0]] if eos_ids else None,
        add_bos=add_bos,
    )


def _rope_scaling(header: GgufHeader, architecture: str) -> RopeScaling | None:
    kind = str(_optional(header, f"{architecture}.rope.scaling.type", "none"))
    if kind == "none":
        return None
    if kind != "linear":
        raise InvalidSpec(
            f"{header.path}: rope scaling {kind!r} is not supported; supported: none, linear, llama3", field=FIELD
        )
    return RopeScaling("linear", float(_required(header, f"{architecture}.rope.scaling.factor")))


def _vocabulary_rows(header: GgufHeader) -> int:
    entry = header.tensors.get("token_embd.weight")
    if entry is None:
        raise InvalidSpec(f"{header.path} has no tensor 'token_embd.weight'; is it a whole model?", field=FIELD)
    return entry.shape[0]


def _token_id(header: GgufHeader, name: str, tokens: list[str]) -> int | None:
    token: int | None = _optional(header, f"tokenizer.ggml.{name}_token_id", None)
    if token is not None and not 0 <= token < len(tokens):
        raise InvalidSpec(
            f"{header.path}: {name} token id {token} is outside the vocabulary of {len(tokens)}", field=FIELD
        )
    return token


def _single(value: float) -> float:
    """A float32 read from the file as the short decimal it was written from: 9.99999975e-06 is 1e-05."""
    return float(f"{value:.7g}")


def _integer(header: GgufHeader, name: str) -> int:
    return int(_required(header, f"{header.metadata['general.architecture']}.{name}"))


def _required(header: GgufHeader, key: str) -> Any:
    if key not in header.metadata:
        raise InvalidSpec(f"{header.path} has no metadata key {key!r}; convert the model again", field=FIELD)
    return header.metadata[key]


def _optional(header: GgufHeader, key: str, default: Any) -> Any:
    return header.metadata.get(key, default)
