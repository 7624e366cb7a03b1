"""Real small models for tests: a GGUF file each, and the same weights as transformers writes them.

The Hugging Face directory is made by transformers' own GGUF reader, so it shares no code with ours and serves as the
oracle. Both live under `.cache/models/`; the directory is made once per digest of the GGUF file.
"""

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = REPOSITORY / ".cache" / "models"


@dataclass(frozen=True, slots=True)
class ReferenceModel:
    """`name` as `hack/models.py` knows it, and its file below `.cache/models/NAME`."""

    name: str
    file: str

    def gguf(self) -> Path:
        """Path of the GGUF file, fetched when absent."""
        path = MODELS / self.name / self.file
        if not path.exists():
            subprocess.run([sys.executable, str(REPOSITORY / "hack" / "models.py"), self.name], check=True)
        return path

    def directory(self) -> Path:
        """Path of the fp32 Hugging Face directory with the same weights and tokenizer; made in a minute at first."""
        source, converted = self.gguf(), MODELS / f"{self.name}-hf"
        with source.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        mark = converted / "source.sha256"
        if mark.exists() and mark.read_text() == digest:
            return converted
        building = converted.with_suffix(".building")
        shutil.rmtree(building, ignore_errors=True)
        shutil.rmtree(converted, ignore_errors=True)
        _convert(source, building)
        (building / mark.name).write_text(digest)
        building.rename(converted)
        return converted


SMOLLM2 = ReferenceModel("smollm2-135m-instruct", "SmolLM2-135M-Instruct.Q4_1.gguf")
GEMMA3 = ReferenceModel("gemma-3-270m", "gemma-3-270m-q4_k_m.gguf")


def _convert(source: Path, target: Path) -> None:
    import torch  # noqa: PLC0415 - the paths above are useful without a second of imports
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)


if __name__ == "__main__":
    for reference in (SMOLLM2, GEMMA3):
        print(reference.directory())
