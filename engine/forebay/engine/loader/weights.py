"""Tensors of a checkpoint under one naming, whatever the file layout.

Names are those of Hugging Face checkpoints; experts of a GGUF file are stacked under `mlp.experts.gate_proj.weight`
and its like. Files are memory-mapped and a tensor is read, dequantized and laid
out only when it is asked for, so a load holds one copy of the weights plus what is in flight. Models ask from several
threads. Only the core process imports this module: it needs torch.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import gguf
import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader.checkpoint import is_gguf
from forebay.engine.loader.gguf_file import GgufHeader, TensorEntry, read_header
from forebay.engine.loader.metadata import FIELD, ModelConfig

_GGUF_LAYER_NAMES: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "post_attention_layernorm": "ffn_norm",
}
_GGUF_GEMMA3_NAMES: Final = {
    **_GGUF_LAYER_NAMES,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GGUF_NAMES: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "rope_factors": "rope_freqs.weight",
}
_JOINED_ROWS: Final = 64
_FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class TensorSource(Protocol):
    """Tensors by Hugging Face name, each in whatever float format the file holds (fp32 after dequantization).

    `norms_are_complete`: norm weights of families that multiply by 1 + weight already have the 1 added.
    """

    norms_are_complete: bool

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds the tensor."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor, checked against `shape`; `InvalidSpec` names the file and tensor when it is missing or wrong."""


def open_tensors(path: Path, config: ModelConfig) -> TensorSource:
    """The tensors of the checkpoint at a resolved path; `InvalidSpec` when a file is truncated or missing."""
    if is_gguf(path):
        return GgufTensors(read_header(path), config)
    return SafetensorsTensors(path)


class GgufTensors:
    """Tensors of one GGUF file, of any mix of quantization types that the `gguf` package can dequantize."""

    norms_are_complete = True

    def __init__(self, header: GgufHeader, config: ModelConfig) -> None:
        self._header = header
        self._config = config
        self._names = _GGUF_GEMMA3_NAMES if config.architecture == "gemma3_text" else _GGUF_LAYER_NAMES
        for name, entry in header.tensors.items():
            if entry.offset + _stored_bytes(header, name, entry) > header.size_bytes:
                raise InvalidSpec(
                    f"{header.path}: tensor {name!r} ends after the end of the file; it is truncated, fetch it again",
                    field=FIELD,
                )
        self._bytes = np.asarray(np.memmap(header.path, dtype=np.uint8, mode="r"))

    def has(self, name: str) -> bool:
        return self._stored_name(name) in self._header.tensors

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        stored = self._stored_name(name)
        entry = self._header.tensors.get(stored)
        if entry is None:
            raise InvalidSpec(f"{self._header.path} has no tensor {stored!r}; is it a whole model?", field=FIELD)
        _check_shape(self._header.path, stored, entry.shape, shape)
        values = self._dequantize(stored, entry).reshape(shape)
        if self._config.architecture != "llama":
            return values
        if ".q_proj." in name:
            return _rows_to_half_split(values, self._config.heads)
        if ".k_proj." in name:
            return _rows_to_half_split(values, self._config.kv_heads)
        return values

    def _stored_name(self, name: str) -> str:
        if name in _GGUF_NAMES:
            return _GGUF_NAMES[name]
        parts = name.split(".")
        if len(parts) < 5 or parts[1] != "layers":
            return name
        part, kind = ".".join(parts[3:-1]), parts[-1]
        return f"blk.{parts[2]}.{self._names.get(part, part)}.{kind}"

    def _dequantize(self, name: str, entry: TensorEntry) -> torch.Tensor:
        kind = gguf.GGMLQuantizationType(entry.kind)
        size = _stored_bytes(self._header, name, entry)
        # Blocks are contiguous, so several rows can be handed over as one: the library walks rows in Python.
        rows = _rows(entry.shape)
        raw = self._bytes[entry.offset : entry.offset + size].reshape(rows // math.gcd(rows, _JOINED_ROWS), -1)
        try:
            values = gguf.dequantize(raw, kind)
        except NotImplementedError as error:
            raise InvalidSpec(
                f"{self._header.path}: tensor {name!r} has type {kind.name}, which cannot be dequantized", field=FIELD
            ) from error
        # A plain fp32 tensor is a view of the read-only map; torch wants memory it may write.
        return torch.from_numpy(values if values.flags.writeable else values.copy())


class SafetensorsTensors:
    """Tensors of a directory of safetensors files; with an index of shards, only of the files it lists.

    Checkpoints of a bare decoder, as embedding models are saved, leave out the prefix "model.".
    """

    norms_are_complete = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        names = _indexed_shards(folder) or sorted(file.name for file in folder.glob("*.safetensors"))
        if not names:
            raise InvalidSpec(f"{folder} has no .safetensors files; convert the weights to safetensors", field=FIELD)
        self._files: Mapping[str, Any] = {name: _open_safetensors(folder / name) for name in names}
        self._place = {name: file for file, handle in self._files.items() for name in handle.keys()}  # noqa: SIM118 - not a dict

    def has(self, name: str) -> bool:
        return name in self._place or name.removeprefix("model.") in self._place

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        stored = name if name in self._place else name.removeprefix("model.")
        file = self._place.get(stored)
        if file is None:
            raise InvalidSpec(
                f"{self._folder} has no tensor {name!r} in its .safetensors files; is a shard missing?", field=FIELD
            )
        values: torch.Tensor = self._files[file].get_tensor(stored)
        _check_shape(self._folder / file, stored, tuple(values.shape), shape)
        if values.dtype not in _FLOATS:
            raise InvalidSpec(
                f"{self._folder / file}: tensor {stored!r} is {values.dtype}; quantized weights are not supported here",
                field=FIELD,
            )
        return values


def _indexed_shards(folder: Path) -> list[str]:
    """Names of the files that hold tensors; empty without an index."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return []
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        is_plain = all(name and Path(name).name == name for name in names)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidSpec(f"{index} is not a safetensors index ({error}); fetch it again", field=FIELD) from error
    if not is_plain:
        raise InvalidSpec(f"{index} names files outside its folder; fetch it again", field=FIELD)
    for name in names:
        if not (folder / name).is_file():
            raise InvalidSpec(f"{folder / name} is missing although the index lists it; fetch it again", field=FIELD)
    return names


def _open_safetensors(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise InvalidSpec(f"{file} is truncated or corrupt ({error}); fetch it again", field=FIELD) from error


def _stored_bytes(header: GgufHeader, name: str, entry: TensorEntry) -> int:
    try:
        block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(entry.kind)]
    except (ValueError, KeyError) as error:
        raise InvalidSpec(f"{header.path}: tensor {name!r} has unknown type {entry.kind}", field=FIELD) from error
    width = entry.shape[-1]
    if width % block:
        raise InvalidSpec(
            f"{header.path}: rows of {name!r} ({width}) are not a multiple of its block of {block}", field=FIELD
        )
    return int(_rows(entry.shape) * (width // block) * block_bytes)


def _rows(shape: tuple[int, ...]) -> int:
    return math.prod(shape[:-1])


def _rows_to_half_split(values: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF interleaves the rows of rotary pairs in each head; put first elements before second ones again."""
    rest = values.shape[1:]
    return values.view(heads, -1, 2, *rest).transpose(1, 2).reshape(values.shape)


def _check_shape(file: Path, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found != wanted:
        raise InvalidSpec(
            f"{file}: tensor {name!r} is {list(found)}, the model's configuration wants {list(wanted)}", field=FIELD
        )
