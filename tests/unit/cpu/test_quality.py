"""The quality measure: nothing is lost against itself, and what is lost shows."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from cpu_build import drive, executor_of
from forebay.engine.__main__ import main
from forebay.engine.quality import Pair, measure, text_windows
from forebay.engine.runner.compute import choose_compute, cpu_features
from model_build import save_tiny
from text_build import byte_level_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quality")
    save_tiny("llama", folder)
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def windows() -> list[list[int]]:
    return [np.random.default_rng(seed).integers(0, 512, length).tolist() for seed, length in ((1, 150), (2, 40))]


def test_fp32_loses_nothing_against_itself(model: Path) -> None:
    exact = executor_of(model, "fp32", "torch")
    quality = measure(Pair(exact, exact, 1), windows(), choose_compute("fp32", cpu_features()))
    assert quality.tokens == 188
    assert (quality.perplexity_ratio, quality.mean_kl, quality.agreement) == (1.0, 0.0, 1.0)
    assert quality.perplexity > 1


def test_perplexity_is_that_of_the_logits(model: Path) -> None:
    window = windows()[1]
    executor = executor_of(model, "fp32", "torch")
    quality = measure(Pair(executor, executor, 1), [window], choose_compute("fp32", cpu_features()))
    driven = drive(executor, model)
    driven.add(0, window)
    logits = driven.advance({0: 39})[0].log_softmax(-1)
    loss = -logits.gather(1, torch.tensor(window[1:])[:, None]).double().mean().item()
    assert quality.perplexity == pytest.approx(math.exp(loss), rel=1e-5)


def test_fewer_bits_lose_more(model: Path) -> None:
    exact = executor_of(model, "fp32", "torch")
    losses = [
        measure(
            Pair(exact, executor_of(model, dtype, "cpu"), 1), windows(), choose_compute(dtype, cpu_features(), "cpu")
        )
        for dtype in ("fp32", "bf16", "int4")
    ]
    assert 0 <= losses[0].mean_kl < losses[1].mean_kl < losses[2].mean_kl
    assert losses[2].agreement < 1


def test_windows_hold_every_token_of_the_text_once(model: Path) -> None:
    text = "tides and clocks " * 40
    cut = text_windows(model, text, 50)
    whole = text_windows(model, text, 100_000)[0]
    assert [token for window in cut for token in window][: len(whole)] == whole
    assert all(1 < len(window) <= 50 for window in cut)


def test_the_command_prints_json(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quality", "--model", str(model), "--precisions", "bf16", "--threads", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["model"] == model.name
    assert [row["dtype"] for row in document["qualities"]] == ["bf16"]


def test_an_unknown_precision_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quality", "--model", str(model), "--precisions", "int3", "--threads", "1"]) == 2
    assert "'int3' is not supported" in capsys.readouterr().err
