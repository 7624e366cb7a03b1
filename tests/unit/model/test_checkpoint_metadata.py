"""Finding a checkpoint and reading its configuration and tokenizer settings from a Hugging Face directory."""

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader import gguf_metadata, hf_families
from forebay.engine.loader.checkpoint import (
    RopeScaling,
    file_digest,
    read_config,
    read_tokenizer,
    resolve_model_path,
)
from forebay.engine.loader.metadata import NATIVE_ARCHITECTURES

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "max_position_embeddings": 256,
}


def write_config(folder: Path, **changes: Any) -> Path:
    document = {name: value for name, value in {**CONFIG, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(document))
    return folder


def test_a_directory_with_one_gguf_file_stands_for_it(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert resolve_model_path(tmp_path) == tmp_path / "a.gguf"
    assert resolve_model_path(tmp_path / "a.gguf") == tmp_path / "a.gguf"


def test_ambiguous_and_missing_checkpoints_say_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="does not exist; give a"):
        resolve_model_path(tmp_path / "absent")
    with pytest.raises(InvalidSpec, match=r"neither config\.json nor a \.gguf"):
        resolve_model_path(tmp_path)
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InvalidSpec, match=r"several .gguf files \(a.gguf, b.gguf\)"):
        resolve_model_path(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(InvalidSpec, match=r"neither a \.gguf file nor a directory"):
        resolve_model_path(tmp_path / "weights.bin")
    assert resolve_model_path(write_config(tmp_path)) == tmp_path


def test_old_and_new_rope_keys_mean_the_same(tmp_path: Path) -> None:
    old = read_config(write_config(tmp_path))
    new = read_config(write_config(tmp_path, rope_theta=None, rope_parameters={"rope_theta": 5000.0}))
    assert old == new
    assert (old.rope_theta, old.head_dim, old.rope_scaling) == (5000.0, 16, None)


def test_llama3_scaling_is_read(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    assert read_config(write_config(tmp_path, rope_scaling=scaling)).rope_scaling == RopeScaling(
        "llama3", 8.0, 1.0, 4.0, 128
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen9"}, "architecture 'qwen9' is not supported; supported: llama"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope type 'yarn' is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized safetensors are not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"num_hidden_layers": None}, "has no key 'num_hidden_layers'"),
        ({"num_hidden_layers": "many"}, "value of the wrong type"),
        ({"num_hidden_layers": 0}, "layers is 0, must be positive"),
        ({"num_key_value_heads": 3}, "4 query heads are not a multiple of 3 KV heads"),
        ({"head_dim": 7}, "head size 7 is odd"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=message) as caught:
        read_config(write_config(tmp_path, **changes))
    assert "config.json" in caught.value.message


def test_broken_json_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"')
    with pytest.raises(InvalidSpec, match=r"config\.json is not valid JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InvalidSpec, match=r"config\.json is not a JSON object"):
        read_config(tmp_path)


def test_a_directory_without_fast_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"no tokenizer\.json"):
        read_tokenizer(write_config(tmp_path))


def test_stop_tokens_come_from_every_file_without_repeats(tmp_path: Path) -> None:
    write_config(tmp_path, eos_token_id=7)
    added = [
        {"id": 5, "content": "<s>", "special": True},
        {"id": 6, "content": "</s>", "special": True},
        {"id": 9, "content": "word", "special": False},
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added, "post_processor": {"first": "<s>"}}))
    settings = {
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [8, 7]}))
    source = read_tokenizer(tmp_path)
    assert source.eos_ids == (8, 7, 6)
    assert (source.bos_id, source.bos_token, source.add_bos) == (5, "<s>", True)
    assert dict(source.special_tokens) == {"<s>": 5, "</s>": 6}
    assert source.chat_template == "D"
    (tmp_path / "chat_template.jinja").write_text("J")
    assert read_tokenizer(tmp_path).chat_template == "J"


def test_the_digest_changes_with_any_byte_and_name(tmp_path: Path) -> None:
    write_config(tmp_path)
    first = file_digest(tmp_path)
    assert file_digest(tmp_path) == first
    (tmp_path / "extra").write_text("x")
    second = file_digest(tmp_path)
    (tmp_path / "extra").rename(tmp_path / "other")
    assert len({first, second, file_digest(tmp_path)}) == 3


def test_both_layouts_know_every_native_architecture() -> None:
    assert tuple(hf_families.FAMILIES) == NATIVE_ARCHITECTURES
    assert tuple(gguf_metadata.ARCHITECTURES.values()) == NATIVE_ARCHITECTURES
