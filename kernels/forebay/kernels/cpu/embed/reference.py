"""Embedding lookup in torch, for tests."""

import torch


def embed_reference(table: torch.Tensor, tokens: torch.Tensor, scale: float) -> torch.Tensor:
    """fp32 [tokens, width]."""
    return table[tokens].float() * scale
