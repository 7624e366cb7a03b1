"""Mixture of experts around the linear layers: choice, grouping of rows by expert, weighted sum.

Use: `linear` of the router in fp32, `route`, `sorted_gather`, then `linear(..., select=routing.rows,
offsets=routing.offsets)` with stacked experts, `gate`, the same for the down projection, and `combine`.
Bit-invariant: a token's experts, weights and sums depend on it alone; of equal probabilities the lower expert is
taken, and a token's experts are added in the order of their probabilities.
"""

from dataclasses import dataclass

import torch

from forebay.kernels.cpu.op import TOKENS, Activation, Op, Selection, Shape, address
from forebay.kernels.cpu.records import (
    CombineRecord,
    OpKind,
    RouteRecord,
    RoutingRecord,
    Rows,
    SortedGatherRecord,
)


@dataclass(frozen=True, slots=True)
class Routing:
    """Buffers that say which expert works on what; filled by `route` in each step.

    Assignment token * top_k + choice has an expert, a weight and a row among the rows sorted by expert (`slots`);
    sorted row r belongs to token `order[r]`; expert e has sorted rows `offsets[e]`..`offsets[e + 1]`.
    """

    weights: torch.Tensor
    experts_of: torch.Tensor
    slots: torch.Tensor
    order: torch.Tensor
    offsets: torch.Tensor
    experts: int
    top_k: int

    @property
    def rows(self) -> Selection:
        """How many sorted rows a step has."""
        return Selection(Rows.TOKENS, self.top_k)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What must stay alive with an op."""
        return (self.weights, self.experts_of, self.slots, self.order, self.offsets)

    def record(self) -> RoutingRecord:
        """The C form."""
        names = ("weights", "experts_of", "slots", "order", "offsets")
        pointers = {name: address(tensor) for name, tensor in zip(names, self.tensors, strict=True)}
        return RoutingRecord(**pointers, experts=self.experts, top_k=self.top_k)


def allocate_routing(tokens: int, experts: int, top_k: int) -> Routing:
    """Buffers for steps of up to `tokens`; sorted rows need buffers of tokens * top_k rows."""
    if not 1 <= top_k <= experts:
        raise ValueError(f"routing: top {top_k} of {experts} experts")
    numbers = [torch.zeros(tokens * top_k, dtype=torch.int32) for _ in range(3)]
    offsets = torch.zeros(experts + 1, dtype=torch.int32)
    return Routing(torch.zeros(tokens * top_k), numbers[0], numbers[1], numbers[2], offsets, experts, top_k)


def route(logits: torch.Tensor, routing: Routing, *, normalise: bool) -> Op:
    """Softmax over `logits` [tokens, experts] fp32, then the top k; weights sum to 1 with `normalise`."""
    Shape("logits", routing.experts).check(logits)
    record = RouteRecord(
        op=TOKENS.header(OpKind.ROUTE), logits=address(logits), routing=routing.record(), normalise=normalise
    )
    capacity = min(TOKENS.capacity(logits), routing.rows.capacity(routing.weights))
    return Op(record, (logits, *routing.tensors), capacity, scratch_bytes=4 * routing.experts)


def sorted_gather(x: Activation, routing: Routing, out: Activation) -> Op:
    """`out` [tokens * top_k] = rows of `x` [tokens] in the order of `routing`; both of one kind and width."""
    if (x.kind, x.width, x.group_sums is None) != (out.kind, out.width, out.group_sums is None):
        raise ValueError(f"sorted_gather: {x.kind.name} rows of {x.width} into {out.kind.name} rows of {out.width}")
    record = SortedGatherRecord(
        op=routing.rows.header(OpKind.SORTED_GATHER), x=x.record(), out=out.record(), order=address(routing.order)
    )
    capacity = min(TOKENS.capacity(x.data), routing.rows.capacity(out.data, routing.order))
    return Op(record, (*x.tensors, *out.tensors, *routing.tensors), capacity)


def combine(x: torch.Tensor, routing: Routing, out: torch.Tensor) -> Op:
    """`out` [tokens, width] += sum over a token's experts of weight * its sorted row of `x` [tokens * top_k, width]."""
    width = Shape("x", out.shape[1]).check(x).shape[1]
    Shape("out", width).check(out)
    if width % 16:
        raise ValueError(f"combine: width {width} is not a multiple of 16")
    record = CombineRecord(
        op=TOKENS.header(OpKind.COMBINE),
        x=address(x),
        out=address(out),
        routing=routing.record(),
        width=width,
    )
    capacity = min(TOKENS.capacity(out), routing.rows.capacity(x, routing.slots))
    return Op(record, (x, out, *routing.tensors), capacity)
