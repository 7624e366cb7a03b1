"""How a checkpoint makes one vector of a text, when it says so.

A Hugging Face folder of an embedding model lists its steps in modules.json: the decoder, a pooling, often a
normalisation. A GGUF file has one key. A model that says nothing has no vectors: guessing a pooling would give numbers
that look fine and mean nothing. Pure metadata; the server decides which kinds it serves.
"""

import json
from pathlib import Path
from typing import Any, Final

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader.gguf_file import GgufHeader
from forebay.engine.loader.metadata import FIELD, Pooling

_MODES: Final = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
}
_NAMED_MODES: Final = {"lasttoken": "last", "mean": "mean", "cls": "first", "max": "max"}
_GGUF_MODES: Final = {1: "mean", 2: "first", 3: "last"}


def gguf_pooling(header: GgufHeader) -> Pooling | None:
    """Pooling of a GGUF file; its vectors have unit length by convention."""
    kind = header.metadata.get(f"{header.metadata.get('general.architecture')}.pooling_type")
    name = _GGUF_MODES.get(kind) if isinstance(kind, int) else None
    return None if name is None else Pooling(name, normalise=True)


def folder_pooling(folder: Path) -> Pooling | None:
    """Pooling of a Hugging Face folder; `InvalidSpec` when its modules.json cannot be read."""
    file = folder / "modules.json"
    if not file.is_file():
        return None
    try:
        modules = [(str(module["type"]).rsplit(".", 1)[-1], str(module["path"])) for module in _json(file)]
        pooling = next((path for kind, path in modules if kind == "Pooling"), None)
        if pooling is None or Path(pooling).name != pooling:
            return None
        kinds = [kind for kind, _ in modules]
        others = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
        mode = f"a step {others[0]}" if others else _mode(_json(folder / pooling / "config.json"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidSpec(
            f"{file} does not describe a sentence model ({error}); fetch it again", field=FIELD
        ) from error
    return Pooling(mode, normalise="Normalize" in kinds)


def _mode(settings: dict[str, Any]) -> str:
    """One mode by name; several at once are joined in the checkpoint's vector, which no name here says."""
    if "pooling_mode" in settings:
        named = str(settings["pooling_mode"])
        return _NAMED_MODES.get(named, named)
    chosen = [name for key, name in _MODES.items() if settings.get(key)]
    return "+".join(chosen) if chosen else "mean"


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
