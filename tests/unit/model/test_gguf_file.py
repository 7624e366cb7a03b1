"""GGUF headers: equal to the reference reader, and no damage goes unnoticed or unexplained."""

import random
from pathlib import Path
from typing import Any

import gguf
import pytest

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader.checkpoint import read_config, read_tokenizer
from forebay.engine.loader.gguf_file import read_header
from forebay.engine.loader.weights import open_tensors
from model_build import save_tiny_llama
from smollm2 import smollm2_gguf
from tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    model = save_tiny_llama(folder / "hf", num_hidden_layers=1, vocab_size=64)
    return write_tiny_gguf(model, folder / "tiny.gguf")


@pytest.fixture(scope="module")
def smollm2_reader() -> Any:
    return gguf.GGUFReader(smollm2_gguf())


def test_metadata_equals_the_reference_reader(smollm2_reader: Any) -> None:
    header = read_header(smollm2_gguf())
    expected = {name: entry.contents() for name, entry in smollm2_reader.fields.items() if not name.startswith("GGUF.")}
    assert dict(header.metadata) == expected


def test_tensor_places_equal_the_reference_reader(smollm2_reader: Any) -> None:
    header = read_header(smollm2_gguf())
    expected = {
        entry.name: (tuple(int(size) for size in entry.shape[::-1]), int(entry.tensor_type), int(entry.data_offset))
        for entry in smollm2_reader.tensors
    }
    assert {name: (entry.shape, entry.kind, entry.offset) for name, entry in header.tensors.items()} == expected


def test_a_file_cut_anywhere_is_refused_by_name(tiny: Path, tmp_path: Path) -> None:
    whole = tiny.read_bytes()
    picks = random.Random(1)
    cut = tmp_path / "cut.gguf"
    for size in [1, 3, 4, 8, 23, 24, len(whole) - 1, *(picks.randrange(1, len(whole)) for _ in range(150))]:
        cut.write_bytes(whole[:size])
        with pytest.raises(InvalidSpec, match=r"cut\.gguf") as caught:
            open_tensors(cut, read_config(cut))
        assert caught.value.field == "model"


def test_random_damage_of_the_header_never_escapes_as_another_error(tiny: Path, tmp_path: Path) -> None:
    whole = bytearray(tiny.read_bytes())
    picks = random.Random(2)
    damaged = tmp_path / "damaged.gguf"
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(3):
            data[picks.randrange(0, 2200)] = picks.randrange(256)
        damaged.write_bytes(data)
        try:
            open_tensors(damaged, read_config(damaged))
        except InvalidSpec:
            refused += 1
    assert refused > 100


def test_an_empty_file_and_a_text_file_are_not_gguf(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"")
    with pytest.raises(InvalidSpec, match=r"model\.gguf"):
        read_header(file)
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(InvalidSpec, match="is not a GGUF file"):
        read_header(file)


def test_an_unknown_architecture_is_refused_with_the_supported_ones(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path / "hf", num_hidden_layers=1, vocab_size=64)
    with pytest.raises(InvalidSpec, match=r"'mamba' is not supported; supported: llama, qwen3"):
        read_config(write_tiny_gguf(model, tmp_path / "mamba.gguf", architecture="mamba"))
    with pytest.raises(InvalidSpec, match=r"'llama with experts' is not supported"):
        read_config(write_tiny_gguf(model, tmp_path / "moe.gguf", metadata={"expert_count": 8}))
    with pytest.raises(InvalidSpec, match=r"rope scaling 'yarn' is not supported"):
        read_config(write_tiny_gguf(model, tmp_path / "yarn.gguf", metadata={"rope.scaling.type": "yarn"}))
    with pytest.raises(InvalidSpec, match="partial rotary"):
        read_config(write_tiny_gguf(model, tmp_path / "partial.gguf", metadata={"rope.dimension_count": 8}))


def test_a_file_without_tokenizer_says_which_key_is_missing(tiny: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"no metadata key 'tokenizer\.ggml\.model'"):
        read_tokenizer(tiny)
