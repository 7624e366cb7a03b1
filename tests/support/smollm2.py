"""The real small model that most tests use; see `reference_models`."""

from pathlib import Path

from reference_models import SMOLLM2


def smollm2_gguf() -> Path:
    """Path of the GGUF file, fetched when absent."""
    return SMOLLM2.gguf()


def smollm2_directory() -> Path:
    """Path of the fp32 Hugging Face directory with the same weights and tokenizer."""
    return SMOLLM2.directory()
