"""Model configuration and tokenizer from a Hugging Face directory.

Reads config.json, generation_config.json, tokenizer.json, tokenizer_config.json and chat_template.jinja as written by
`save_pretrained` of any recent transformers version (rope parameters moved in version 5). Values this engine would
compute wrongly are refused by name.
"""

import json
from pathlib import Path
from typing import Any

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader.generic_metadata import generic_config
from forebay.engine.loader.hf_families import native_config
from forebay.engine.loader.metadata import (
    FIELD,
    NATIVE_ARCHITECTURES,
    ModelConfig,
    TokenizerSource,
    check_config,
)


def read_config(folder: Path) -> ModelConfig:
    """Configuration in `folder`/config.json; `InvalidSpec` names the key that is missing or not supported."""
    file = folder / "config.json"
    document = _json(file)
    architecture = str(document.get("model_type"))
    if document.get("quantization_config"):
        raise InvalidSpec(
            f"{file}: quantized safetensors are not supported; use bf16 or fp32 weights or GGUF", field=FIELD
        )
    if architecture not in NATIVE_ARCHITECTURES:
        return generic_config(folder, architecture)
    try:
        config = native_config(document, str(file))
    except KeyError as error:
        raise InvalidSpec(f"{file} has no key {error}; is it the model's own config.json?", field=FIELD) from error
    except (TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError) as error:
        raise InvalidSpec(f"{file} has a value of the wrong type: {error}", field=FIELD) from error
    return check_config(config, str(file))


def read_tokenizer(folder: Path) -> TokenizerSource:
    """Tokenizer in `folder`; tokenizer.json is required, the rest optional."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise InvalidSpec(f"{folder} has no tokenizer.json; save the model with a fast tokenizer", field=FIELD)
    text = _text(file)
    document = _parse(text, file)
    settings = _json_if_present(folder / "tokenizer_config.json")
    special = _special_tokens(document, file)
    bos_token, eos_token = _content(settings.get("bos_token")), _content(settings.get("eos_token"))
    bos_id = special.get(bos_token) if bos_token else None
    return TokenizerSource(
        tokenizer_json=text,
        chat_template=_chat_template(folder, settings),
        bos_id=bos_id,
        eos_ids=_eos_ids(folder, special.get(eos_token) if eos_token else None),
        special_tokens=special,
        bos_token=bos_token,
        eos_token=eos_token,
        add_bos=bos_token is not None and bos_token in json.dumps(document.get("post_processor"), ensure_ascii=False),
    )


def _special_tokens(document: dict[str, Any], file: Path) -> dict[str, int]:
    try:
        added = document.get("added_tokens", [])
        return {str(item["content"]): int(item["id"]) for item in added if item.get("special")}
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InvalidSpec(f"{file}: added_tokens are not what a tokenizer has: {error}", field=FIELD) from error


def _eos_ids(folder: Path, tokenizer_eos: int | None) -> tuple[int, ...]:
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = _json_if_present(folder / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(type(token) is not int or token < 0 for token in ids):
            raise InvalidSpec(f"{folder / name}: eos_token_id {value!r} is not a token id", field=FIELD)
        found += ids
    if tokenizer_eos is not None:
        found.append(tokenizer_eos)
    return tuple(dict.fromkeys(found))


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return _text(file)
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {str(item.get("name")): str(item.get("template")) for item in template}
        return named.get("default")
    return None if template is None else str(template)


def _content(token: Any) -> str | None:
    """Text of a special token, which tokenizer_config.json writes either plain or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return None if token is None else str(token)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"{file} cannot be read: {error}", field=FIELD) from error


def _json(file: Path) -> dict[str, Any]:
    return _parse(_text(file), file)


def _json_if_present(file: Path) -> dict[str, Any]:
    return _json(file) if file.is_file() else {}


def _parse(text: str, file: Path) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidSpec(f"{file} is not valid JSON: {error}; fetch it again", field=FIELD) from error
    if not isinstance(document, dict):
        raise InvalidSpec(f"{file} is not a JSON object; fetch it again", field=FIELD)
    return document
