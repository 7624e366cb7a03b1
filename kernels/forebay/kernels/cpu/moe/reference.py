"""A mixture of experts one token at a time in fp64, for tests."""

from collections.abc import Callable, Sequence

import torch


def route_reference(logits: torch.Tensor, top_k: int, normalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """fp64 weights and experts, each [tokens, top_k], highest first."""
    weights, experts = logits.double().softmax(dim=-1).topk(top_k, dim=-1)
    return (weights / weights.sum(dim=-1, keepdim=True) if normalise else weights), experts


def moe_reference(
    x: torch.Tensor,
    logits: torch.Tensor,
    experts: Sequence[Callable[[torch.Tensor], torch.Tensor]],
    top_k: int,
    normalise: bool,
) -> torch.Tensor:
    """fp64 [tokens, width]: for each token the weighted sum of `experts` (functions of a row) on its row of `x`."""
    weights, chosen = route_reference(logits, top_k, normalise)
    rows = []
    for token in range(x.shape[0]):
        parts = [weights[token, i] * experts[int(chosen[token, i])](x[token].double()) for i in range(top_k)]
        rows.append(torch.stack(parts).sum(dim=0))
    return torch.stack(rows)
