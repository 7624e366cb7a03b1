"""Draft models made from their target: its first layers, which share tokenizer, embedding and head.

A truncated model is a poor but honest draft; all layers make one that is always right.
"""

import json
import shutil
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

_LAYER = "model.layers."


def truncated_model(source: Path, target: Path, layers: int) -> Path:
    """Write the first `layers` layers of the Hugging Face checkpoint `source` to `target`, with its other files."""
    target.mkdir(parents=True, exist_ok=True)
    kept = {}
    for file in sorted(source.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                if not name.startswith(_LAYER) or int(name.removeprefix(_LAYER).split(".")[0]) < layers:
                    kept[name] = tensors.get_tensor(name)
    save_file(kept, target / "model.safetensors", {"format": "pt"})
    for file in source.iterdir():
        if file.suffix in {".json", ".txt", ".jinja"} and file.name not in {
            "config.json",
            "model.safetensors.index.json",
        }:
            shutil.copy(file, target)
    config = json.loads((source / "config.json").read_text())
    config["num_hidden_layers"] = layers
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    (target / "config.json").write_text(json.dumps(config))
    return target
