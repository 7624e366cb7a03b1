"""The real small model for tests: its GGUF file, and the same weights as transformers writes them.

The Hugging Face directory is made by transformers' own GGUF reader, so it shares no code with ours and serves as the
oracle. Both live under `.cache/models/`; the directory is made once per digest of the GGUF file.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = REPOSITORY / ".cache" / "models"
GGUF = MODELS / "smollm2-135m-instruct" / "SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERTED = MODELS / "smollm2-135m-instruct-hf"


def smollm2_gguf() -> Path:
    """Path of the GGUF file, fetched when absent."""
    if not GGUF.exists():
        subprocess.run([sys.executable, str(REPOSITORY / "hack" / "models.py")], check=True)
    return GGUF


def smollm2_directory() -> Path:
    """Path of the fp32 Hugging Face directory with the same weights and tokenizer; made in half a minute at first."""
    source = smollm2_gguf()
    with source.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    mark = CONVERTED / "source.sha256"
    if mark.exists() and mark.read_text() == digest:
        return CONVERTED
    building = CONVERTED.with_suffix(".building")
    shutil.rmtree(building, ignore_errors=True)
    shutil.rmtree(CONVERTED, ignore_errors=True)
    _convert(source, building)
    (building / mark.name).write_text(digest)
    building.rename(CONVERTED)
    return CONVERTED


def _convert(source: Path, target: Path) -> None:
    import torch  # noqa: PLC0415 - the paths above are useful without a second of imports
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)


if __name__ == "__main__":
    print(smollm2_directory())
