"""What a checkpoint says about its model and tokenizer, without reading tensors.

Two layouts are read: one GGUF file, or a Hugging Face directory (config.json, tokenizer.json, *.safetensors). Every
problem is an `InvalidSpec` on field `model` that names the file and the fix. No torch is imported here: the API
process uses this module, the core process adds `weights`.
"""

import hashlib
from pathlib import Path

from forebay.contract.errors import InvalidSpec
from forebay.engine.loader import gguf_metadata, gguf_tokenizer, hf_metadata
from forebay.engine.loader.gguf_file import read_header
from forebay.engine.loader.metadata import FIELD, ModelConfig, Pooling, RopeScaling, TokenizerSource
from forebay.engine.loader.pooling import folder_pooling, gguf_pooling
from forebay.engine.loader.sizes import kv_bytes_per_page, weight_bytes

__all__ = [
    "ModelConfig",
    "Pooling",
    "RopeScaling",
    "TokenizerSource",
    "file_digest",
    "is_gguf",
    "kv_bytes_per_page",
    "read_config",
    "read_pooling",
    "read_tokenizer",
    "resolve_model_path",
    "weight_bytes",
]


def resolve_model_path(path: Path) -> Path:
    """The checkpoint that `path` means: a GGUF file, or a directory with config.json.

    A directory that holds exactly one .gguf file stands for that file. Raises `InvalidSpec` for anything else.
    """
    if path.is_file():
        if path.suffix != ".gguf":
            raise InvalidSpec(
                f"{path} is neither a .gguf file nor a directory; give the model's directory instead", field=FIELD
            )
        return path
    if not path.is_dir():
        raise InvalidSpec(f"{path} does not exist; give a .gguf file or a Hugging Face directory", field=FIELD)
    if (path / "config.json").is_file():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(file.name for file in files)
        raise InvalidSpec(f"{path} holds several .gguf files ({names}); give the path of one", field=FIELD)
    raise InvalidSpec(f"{path} holds neither config.json nor a .gguf file; is it the model's directory?", field=FIELD)


def is_gguf(path: Path) -> bool:
    """Whether a resolved checkpoint is a GGUF file."""
    return path.suffix == ".gguf"


def read_config(path: Path) -> ModelConfig:
    """Shape and constants of the model at a resolved path; `InvalidSpec` for unknown architectures or bad files."""
    if is_gguf(path):
        return gguf_metadata.read_config(read_header(path))
    return hf_metadata.read_config(path)


def read_tokenizer(path: Path) -> TokenizerSource:
    """Tokenizer document, chat template and special ids of the checkpoint at a resolved path."""
    if is_gguf(path):
        return gguf_tokenizer.read_tokenizer(read_header(path))
    return hf_metadata.read_tokenizer(path)


def read_pooling(path: Path) -> Pooling | None:
    """How the checkpoint at a resolved path makes sentence vectors; None when it does not say."""
    return gguf_pooling(read_header(path)) if is_gguf(path) else folder_pooling(path)


def file_digest(path: Path) -> str:
    """SHA-256 of the checkpoint in hex; reads every byte.

    A directory's digest is over the sorted names and digests of the files directly in it.
    """
    if path.is_file():
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    whole = hashlib.sha256()
    for file in sorted(entry for entry in path.iterdir() if entry.is_file()):
        whole.update(f"{file.name}\0{file_digest(file)}\n".encode())
    return whole.hexdigest()
