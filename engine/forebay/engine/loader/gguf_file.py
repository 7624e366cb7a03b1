"""The header of a GGUF file (versions 2 and 3): metadata and where each tensor lies.

The header is read by one forward scan over a memory map; tensors stay on disk until `weights` maps them. Everything
is checked against the file's size, so a truncated or corrupt file is an `InvalidSpec` with the file's name and never a
struct error or a read past the end. Only little-endian files exist in practice; others are refused.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader.metadata import FIELD

MAGIC: Final = b"GGUF"
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9
_MAX_ITEMS: Final = 1 << 24
_MAX_DIMENSIONS: Final = 4
_MAX_ALIGNMENT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Place of one tensor: `shape` row-major (slowest first), `kind` the GGML type number, `offset` in file bytes."""

    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensor directory of one file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]
    size_bytes: int


class _Scan:
    """A cursor over the header's bytes that refuses to leave the file."""

    def __init__(self, path: Path, view: mmap.mmap) -> None:
        self.path = path
        self.view = view
        self.position = 0

    def fail(self, why: str) -> NoReturn:
        raise InvalidSpec(
            f"{self.path}: {why} at byte {self.position}; the file is truncated or corrupt, fetch it again", field=FIELD
        )

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.view):
            self.fail(f"{count} bytes expected but the file ends")
        data = self.view[self.position : end]
        self.position = end
        return data

    def unpack(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def count(self, what: str) -> int:
        number = int(self.unpack("Q"))
        if number > _MAX_ITEMS:
            self.fail(f"impossible count {number} of {what}")
        return number

    def string(self) -> str:
        # Tokens of byte-level vocabularies are valid UTF-8; a broken one must not stop the load of a whole model.
        return self.take(self.count("string bytes")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.unpack(_SCALARS[kind])
        if kind != _ARRAY:
            self.fail(f"unknown value type {kind}")
        item = int(self.unpack("I"))
        count = self.count("array items")
        if item == _STRING:
            return [self.string() for _ in range(count)]
        if item not in _SCALARS:
            self.fail(f"unknown array item type {item}")
        code = _SCALARS[item]
        return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(code))))


def read_header(path: Path) -> GgufHeader:
    """Metadata and tensor directory of the GGUF file at `path`; raises `InvalidSpec` for a file that is not whole."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _read(_Scan(path, view))
    except (OSError, ValueError) as error:
        raise InvalidSpec(f"{path} cannot be read: {error}", field=FIELD) from error


def _read(scan: _Scan) -> GgufHeader:
    if scan.take(4) != MAGIC:
        raise InvalidSpec(f"{scan.path} is not a GGUF file: it does not start with 'GGUF'", field=FIELD)
    version = int(scan.unpack("I"))
    if version not in (2, 3):
        raise InvalidSpec(f"{scan.path}: GGUF version {version} is not supported; supported: 2, 3", field=FIELD)
    tensor_count = scan.count("tensors")
    pair_count = scan.count("metadata pairs")
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = scan.string()
        metadata[key] = scan.value(int(scan.unpack("I")))
    entries = [_tensor_entry(scan) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= _MAX_ALIGNMENT:
        scan.fail(f"impossible alignment {alignment!r}")
    base = -(-scan.position // alignment) * alignment
    size = len(scan.view)
    tensors = {name: TensorEntry(entry.shape, entry.kind, base + entry.offset) for name, entry in entries}
    if len(tensors) != len(entries):
        scan.fail("two tensors have the same name")
    for name, entry in tensors.items():
        if entry.offset >= size:
            scan.fail(f"tensor {name!r} starts after the end of the file")
    return GgufHeader(scan.path, metadata, tensors, size)


def _tensor_entry(scan: _Scan) -> tuple[str, TensorEntry]:
    name = scan.string()
    dimensions = int(scan.unpack("I"))
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        scan.fail(f"tensor {name!r} has {dimensions} dimensions")
    shape = tuple(scan.count("elements") for _ in range(dimensions))
    kind = int(scan.unpack("I"))
    # GGUF lists the fastest dimension first.
    return name, TensorEntry(shape[::-1], kind, int(scan.unpack("Q")))
