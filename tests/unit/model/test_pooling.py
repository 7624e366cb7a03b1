"""Sentence vectors: what a checkpoint declares, and the hidden states they are made of."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch.nn import functional

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader.checkpoint import Pooling, read_config, read_pooling
from forebay.engine.models.executors import build_torch_executor
from forebay.engine.runner.compute import choose_compute, cpu_features
from forebay.engine.runner.executor import ExecutorSizes, StepInputs
from model_build import PAGE_TOKENS, save_tiny

LAST = {"word_embedding_dimension": 64, "pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}


def declare(folder: Path, pooling: dict[str, Any], *steps: str) -> Path:
    """Write modules.json as sentence models have it: the decoder, a pooling, and other steps."""
    kinds = ["Transformer", "Pooling", *steps]
    modules = [
        {"idx": place, "name": str(place), "path": "" if place == 0 else f"{place}_{kind}", "type": f"library.{kind}"}
        for place, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def test_a_folder_declares_its_pooling(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert read_pooling(tmp_path) is None
    assert read_pooling(declare(tmp_path, LAST, "Normalize")) == Pooling("last", normalise=True)
    assert read_pooling(declare(tmp_path, LAST)) == Pooling("last", normalise=False)
    assert read_pooling(declare(tmp_path, {"pooling_mode": "lasttoken"})) == Pooling("last", normalise=False)
    both = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}
    assert read_pooling(declare(tmp_path, both)) == Pooling("mean+max", normalise=False)
    assert read_pooling(declare(tmp_path, LAST, "Dense", "Normalize")) == Pooling("a step Dense", normalise=True)


@pytest.mark.parametrize("content", ["{", "{}", "[1]", '[{"type": "x.Pooling"}]', "[" * 100_000])
def test_a_broken_description_is_refused_by_name(content: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(content)
    if content == "{}":
        assert read_pooling(tmp_path) is None
        return
    with pytest.raises(InvalidSpec, match=r"modules\.json does not describe"):
        read_pooling(tmp_path)


def test_a_pooling_outside_the_folder_is_not_read(tmp_path: Path) -> None:
    modules = [{"path": "", "type": "a.Transformer"}, {"path": "../other", "type": "a.Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert read_pooling(tmp_path) is None


@pytest.mark.parametrize(("number", "pooling"), [(3, Pooling("last", normalise=True)), (0, None), (None, None)])
def test_a_gguf_file_declares_its_pooling(number: int | None, pooling: Pooling | None, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen3")
    if number is not None:
        writer.add_uint32("qwen3.pooling_type", number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert read_pooling(tmp_path / "m.gguf") == pooling


def test_last_hidden_states_equal_transformers_for_a_model_saved_without_its_head(tmp_path: Path) -> None:
    model = save_tiny("qwen3", tmp_path / "whole").model
    model.save_pretrained(tmp_path / "bare")
    path = declare(tmp_path / "bare", LAST, "Normalize")
    sizes = ExecutorSizes((16,), PAGE_TOKENS, 4, 256, threads=1)
    executor = build_torch_executor(path, read_config(path), choose_compute("fp32", cpu_features()), sizes)
    texts = [np.random.default_rng(length).integers(0, 512, length) for length in (40, 7)]
    counts = np.array([len(text) for text in texts])
    inputs = StepInputs(
        tokens=np.concatenate(texts),
        positions=np.concatenate([np.arange(count) for count in counts]),
        starts=np.zeros(2, dtype=np.int64),
        counts=counts,
        tables=(np.array([[3, 9, 1], [5, 5, 5]], dtype=np.int32),),
        sampled=np.cumsum(counts) - 1,
    )
    found = functional.normalize(executor.hidden(inputs), dim=-1)
    for text, vector in zip(texts, found, strict=True):
        with torch.inference_mode():
            expected = model(torch.from_numpy(text)[None]).last_hidden_state[0, -1]
        torch.testing.assert_close(vector, functional.normalize(expected, dim=-1), rtol=1e-4, atol=1e-5)
