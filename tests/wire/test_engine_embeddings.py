"""An embedding model over HTTP: vectors are what transformers computes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from engine_process import MODEL, running_engine
from model_build import save_tiny
from smollm2 import smollm2_directory

pytestmark = [pytest.mark.wire, pytest.mark.timeout(600)]


def with_tokenizer(folder: Path) -> Path:
    """`folder` with the real small model's tokenizer."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(smollm2_directory() / name, folder / name)
    return folder


def test_embeddings_are_the_normalised_last_state(tmp_path: Path) -> None:
    model = save_tiny("qwen3", tmp_path / "m", vocab_size=49152, tie_word_embeddings=True)
    folder = with_tokenizer(tmp_path / "m")
    steps = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"path": path, "type": f"sentence.{kind}"} for path, kind in steps]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    texts = ["The harbour office kept two clocks.", "Neither was wrong."]
    with running_engine(tmp_path, model=folder, max_prompt_tokens=400) as engine:
        status, _, answer = engine.call("POST", "/v1/embeddings", {"model": MODEL, "input": texts})
        assert status == 200, answer
        assert engine.pages_at_rest()
    found = np.array([item["embedding"] for item in json.loads(answer)["data"]])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text, vector in zip(texts, found, strict=True):
        with torch.inference_mode():
            state = model.model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0, -1].numpy()
        assert np.abs(vector - state / np.linalg.norm(state)).max() < 1e-3
