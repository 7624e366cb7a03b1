"""Checkpoints made to break the loader: every one ends as `InvalidSpec` on field `model`, and quickly."""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader.checkpoint import read_config, read_tokenizer
from forebay.engine.loader.weights import open_tensors
from model_build import save_tiny

BASE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "endless layers": {"num_hidden_layers": 10**15},
    "endless layers with windows": {"num_hidden_layers": 10**15, "use_sliding_window": True, "sliding_window": 4},
    "a vocabulary beyond memory": {"vocab_size": 1 << 60},
    "infinite theta": {"rope_theta": float("inf"), "num_hidden_layers": -1},
    "theta that is no number": {"rope_theta": float("nan")},
    "negative theta": {"rope_theta": -1.0},
    "more experts a token than there are": {"num_experts": 2, "num_experts_per_tok": 3},
    "no experts": {"num_experts": 0},
    "a sparse step of zero": {"decoder_sparse_step": 0},
    "layer types of another length": {"layer_types": ["full_attention"]},
    "layer types that are no list": {"layer_types": 7},
    "unknown layer types": {"layer_types": ["linear_attention", "full_attention"]},
    "a window of less than nothing": {"layer_types": ["sliding_attention"] * 2, "sliding_window": -5},
    "rope as text": {"rope_parameters": "yes"},
    "a list of heads": {"num_attention_heads": [4]},
    "infinite size": {"hidden_size": float("inf")},
    "zero heads": {"num_attention_heads": 0},
    "partial rotary": {"rope_parameters": {"partial_rotary_factor": 0.25}},
}


def refused(caught: pytest.ExceptionInfo[InvalidSpec]) -> bool:
    return caught.value.field == "model"


@pytest.mark.parametrize("name", list(CONFIGS))
def test_a_hostile_configuration_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**BASE, **CONFIGS[name]}))
    with pytest.raises(InvalidSpec, match=r"config\.json") as caught:
        read_config(tmp_path)
    assert refused(caught)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"[" * 200_000, b"\xff\xfe", b"7", b""])
def test_a_file_that_is_no_document_is_refused_by_name(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / name).write_bytes(content)
    read = read_config if name == "config.json" else read_tokenizer
    with pytest.raises(InvalidSpec, match=name.replace(".", r"\.")) as caught:
        read(tmp_path)
    assert refused(caught)


TOKENIZERS: dict[str, dict[str, Any]] = {
    "added tokens that are no list": {"added_tokens": 7},
    "added tokens that are no objects": {"added_tokens": [7]},
    "added tokens without text": {"added_tokens": [{"id": 1, "special": True}]},
    "an id that is no number": {"added_tokens": [{"id": "x", "content": "a", "special": True}]},
}


@pytest.mark.parametrize("name", list(TOKENIZERS))
def test_a_hostile_tokenizer_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZERS[name]))
    with pytest.raises(InvalidSpec, match=r"tokenizer\.json") as caught:
        read_tokenizer(tmp_path)
    assert refused(caught)


@pytest.mark.parametrize("eos", ["x", {"a": 1}, [1, "x"], True, -1])
def test_a_stop_token_that_is_no_id_is_refused(eos: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**BASE, "eos_token_id": eos}))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidSpec, match="eos_token_id"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize("place", ["../model.safetensors", "/etc/passwd", 7, ["a"], ""])
def test_an_index_that_points_elsewhere_is_refused(place: Any, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "model.safetensors")
    index = {"weight_map": {"model.norm.weight": place}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidSpec, match=r"index\.json") as caught:
        open_tensors(tmp_path / "m", read_config(tmp_path / "m"))
    assert refused(caught)


def test_files_that_the_index_does_not_list_are_not_read(tmp_path: Path) -> None:
    model = save_tiny("llama", tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    save_file({name: torch.zeros_like(tensor) for name, tensor in stored.items()}, tmp_path / "zeros.safetensors")
    index = {"weight_map": dict.fromkeys(stored, "model.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    norm = open_tensors(tmp_path, read_config(tmp_path)).tensor("model.norm.weight", (64,))
    assert torch.equal(norm, model.model.norm.weight)


def test_weights_that_need_scales_are_refused_and_not_read_as_numbers(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    stored["model.norm.weight"] = stored["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(InvalidSpec, match="float8_e4m3fn; quantized weights are not supported"):
        open_tensors(tmp_path, read_config(tmp_path)).tensor("model.norm.weight", (64,))


def gguf_bytes(pairs: bytes, pair_count: int, tensors: bytes = b"", tensor_count: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensor_count, pair_count) + pairs + tensors


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensor(name: str, offset: int = 0) -> bytes:
    return text(name) + struct.pack("<IQIQ", 1, 8, 0, offset)


ALIGNMENTS = {
    "text": struct.pack("<I", 8) + text("abc"),
    "a list": struct.pack("<IIQ", 9, 4, 1) + struct.pack("<I", 32),
    "infinity": struct.pack("<If", 6, float("inf")),
    "zero": struct.pack("<II", 4, 0),
    "more than a file": struct.pack("<IQ", 10, 1 << 63),
    "a flag": struct.pack("<I?", 7, True),
}


@pytest.mark.parametrize("name", list(ALIGNMENTS))
def test_an_impossible_alignment_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(text("general.alignment") + ALIGNMENTS[name], 1) + bytes(256))
    with pytest.raises(InvalidSpec, match="impossible alignment"):
        read_config(path)


def test_two_tensors_of_one_name_and_far_offsets_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(b"", 0, tensor("a") + tensor("a"), 2) + bytes(256))
    with pytest.raises(InvalidSpec, match="two tensors have the same name"):
        read_config(path)
    path.write_bytes(gguf_bytes(b"", 0, tensor("a", (1 << 64) - 1), 1) + bytes(256))
    with pytest.raises(InvalidSpec, match="starts after the end"):
        read_config(path)


SPM: dict[str, Any] = {"model": "llama", "tokens": ["a", "b", "ab"], "scores": [0.0, 0.0, 1.0], "token_type": [1, 1, 1]}
VOCABULARIES: dict[str, tuple[dict[str, Any], str]] = {
    "too many kinds": ({"token_type": [1] * 9}, "token_type has 9 entries for 3 tokens"),
    "too few scores": ({"scores": [0.0]}, "scores has 1 entries for 3 tokens"),
    "tokens that are numbers": ({"tokens": [1, 2, 3]}, "tokens is not a list of str"),
    "tokens that are no list": ({"tokens": "abc"}, "tokens is not a list of str"),
    "scores that are integers": ({"scores": [1, 2, 3]}, "scores is not a list of float"),
    "no scores": ({"scores": None}, "no metadata key 'tokenizer.ggml.scores'"),
    "an unknown token that is not there": ({"unknown_token_id": 3}, "unknown token id 3 is outside"),
    "a first token that is a text": ({"bos_token_id": "a"}, "bos token id a is outside"),
    "merges of unknown tokens": ({"model": "gpt2", "merges": ["a b", "x y"]}, "merge 'x y' is not made of tokens"),
    "merges that are numbers": ({"model": "gpt2", "merges": [1]}, "merges is not a list of str"),
}


@pytest.mark.parametrize("name", list(VOCABULARIES))
def test_a_vocabulary_whose_lists_disagree_is_refused(name: str, tmp_path: Path) -> None:
    changes, message = VOCABULARIES[name]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for key, value in {**SPM, **changes}.items():
        if isinstance(value, list):
            writer.add_array(f"tokenizer.ggml.{key}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"tokenizer.ggml.{key}", value)
        elif value is not None:
            writer.add_string(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(InvalidSpec, match=message) as caught:
        read_tokenizer(tmp_path / "m.gguf")
    assert refused(caught)
