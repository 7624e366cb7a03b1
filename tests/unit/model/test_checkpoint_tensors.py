"""Tensors of GGUF and safetensors checkpoints: values, layouts, and what a broken one says."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader.checkpoint import read_config
from forebay.engine.loader.gguf_file import read_header
from forebay.engine.loader.weights import SafetensorsTensors, open_tensors
from model_build import save_tiny_llama
from smollm2 import smollm2_directory, smollm2_gguf
from tiny_gguf import gguf_name, write_tiny_gguf

QUANTIZED = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


@pytest.mark.parametrize("kind", ["F32", *QUANTIZED])
def test_gguf_values_equal_the_library_in_checkpoint_layout(kind: str, tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path / "hf", num_hidden_layers=2)
    path = write_tiny_gguf(model, tmp_path / f"{kind}.gguf", kind)
    source = open_tensors(path, read_config(path))
    for name, parameter in model.named_parameters():
        expected = parameter.detach()
        if kind != "F32" and expected.dim() > 1:
            quantized = gguf.GGMLQuantizationType[kind]
            # Quantization works along rows and the layout moves whole rows, so the order of the two does not matter.
            rounded = gguf.dequantize(gguf.quantize(expected.numpy(), quantized), quantized)
            expected = torch.from_numpy(rounded).reshape(expected.shape)
        assert torch.equal(source.tensor(name, tuple(expected.shape)), expected), name


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ4_NL", "Q8_0"])
def test_every_block_type_is_read_from_any_row_count(kind: str, tmp_path: Path) -> None:
    quantized = gguf.GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[quantized]
    model = save_tiny_llama(tmp_path / "hf", num_hidden_layers=1, vocab_size=64)
    path = write_tiny_gguf(model, tmp_path / "tiny.gguf")
    raw = np.random.default_rng(4).integers(0, 60, (96, 256 // block * block_bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("blk.0.ffn_down.weight", raw, raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = open_tensors(tmp_path / "one.gguf", read_config(path))
    values = source.tensor("model.layers.0.mlp.down_proj.weight", (96, 256))
    expected = torch.from_numpy(gguf.dequantize(raw, quantized))
    assert torch.equal(values.nan_to_num(), expected.nan_to_num())


def test_q4_1_equals_an_independent_decoder() -> None:
    path = smollm2_gguf()
    entry = read_header(path).tensors["blk.3.ffn_up.weight"]
    assert gguf.GGMLQuantizationType(entry.kind).name == "Q4_1"
    rows, columns = entry.shape
    blocks = rows * columns // 32
    raw = np.fromfile(path, dtype=np.uint8, count=blocks * 20, offset=entry.offset).reshape(blocks, 20)
    expected = np.empty((blocks, 32), dtype=np.float32)
    for index in range(blocks):
        scale, least = raw[index, :4].view(np.float16).astype(np.float32)
        for half in range(16):
            expected[index, half] = scale * (raw[index, 4 + half] & 15) + least
            expected[index, half + 16] = scale * (raw[index, 4 + half] >> 4) + least
        if index == 2000:
            break
    values = open_tensors(path, read_config(path)).tensor("model.layers.3.mlp.up_proj.weight", (rows, columns))
    assert np.array_equal(values.numpy().reshape(-1, 32)[:2001], expected[:2001])


def test_smollm2_tensors_equal_transformers_conversion() -> None:
    converted = load_file(smollm2_directory() / "model.safetensors")
    source = open_tensors(smollm2_gguf(), read_config(smollm2_gguf()))
    for name, expected in converted.items():
        assert torch.equal(source.tensor(name, tuple(expected.shape)), expected.float()), name
    assert len(converted) == 272


def test_shards_read_as_one_checkpoint(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path, shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    source = open_tensors(tmp_path, read_config(tmp_path))
    for name, parameter in model.named_parameters():
        assert torch.equal(source.tensor(name, tuple(parameter.shape)), parameter), name


def test_a_missing_shard_is_named_by_the_tensor_it_held(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, shard_size="100KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    place = index["weight_map"]["model.layers.1.mlp.up_proj.weight"]
    (tmp_path / place).unlink()
    with pytest.raises(InvalidSpec, match=rf"{place}.*missing"):
        open_tensors(tmp_path, read_config(tmp_path))


def test_a_truncated_safetensors_file_is_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    file = tmp_path / "model.safetensors"
    data = file.read_bytes()
    for size in (0, 7, 100, len(data) - 1):
        file.write_bytes(data[:size])
        with pytest.raises(InvalidSpec, match=r"model\.safetensors is truncated or corrupt"):
            open_tensors(tmp_path, read_config(tmp_path))


def test_a_directory_without_weights_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"no \.safetensors files"):
        SafetensorsTensors(tmp_path)


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    source = open_tensors(tmp_path, read_config(tmp_path))
    with pytest.raises(InvalidSpec, match=r"'model\.norm\.weight' is \[64\], .* wants \[65\]"):
        source.tensor("model.norm.weight", (65,))
    with pytest.raises(InvalidSpec, match=r"no tensor 'absent'"):
        source.tensor("absent", (1,))


def test_gguf_names_cover_every_parameter(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path / "hf", attention_bias=True, mlp_bias=True)
    path = write_tiny_gguf(model, tmp_path / "biased.gguf")
    config = read_config(path)
    assert (config.attention_bias, config.mlp_bias) == (True, True)
    source = open_tensors(path, config)
    for name, parameter in model.named_parameters():
        assert source.has(name), gguf_name(name)
        assert torch.equal(source.tensor(name, tuple(parameter.shape)), parameter), name
