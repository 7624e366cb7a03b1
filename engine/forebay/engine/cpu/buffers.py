"""Working memory of a tape: one set of buffers that all layers share, sized for the largest step.

Linear layers read activations in the form that their weights want and write fp32. A buffer is made when its width is
first asked for, so layers of several widths (dense ones between experts) cost one buffer for each width. Threads that
load layers ask at the same time.
"""

from threading import Lock

import torch

from forebay.engine.models.decoder import DecoderShape
from forebay.kernels.cpu import Activation, NumberKind, Routing, allocate_activation, allocate_routing


class Buffers:
    """Rows of fp32 and of activations, each [max_tokens, width], by purpose."""

    def __init__(self, shape: DecoderShape, max_tokens: int) -> None:
        self._lock = Lock()
        self._tokens = max_tokens
        self._rows: dict[tuple[str, int], torch.Tensor] = {}
        self._activations: dict[tuple[str, NumberKind, int], Activation] = {}
        self._routings: dict[tuple[int, int], Routing] = {}
        self.residual = self.rows("residual", shape.hidden)
        self.qkv = self.rows("qkv", (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
        self.mixed = self.rows("mixed", shape.heads * shape.head_dim)

    def rows(self, purpose: str, width: int, multiple: int = 1) -> torch.Tensor:
        """The fp32 buffer of `multiple` rows a token for `purpose`."""
        key = (purpose, width)
        with self._lock:
            if key not in self._rows:
                self._rows[key] = torch.zeros(self._tokens * multiple, width)
            return self._rows[key]

    def activation(self, purpose: str, kind: NumberKind, width: int, multiple: int = 1) -> Activation:
        """The activation buffer for `purpose`; `kind` as `allocate_activation` takes it."""
        key = (purpose, kind, width)
        with self._lock:
            if key not in self._activations:
                self._activations[key] = allocate_activation(kind, self._tokens * multiple, width)
            return self._activations[key]

    def routing(self, experts: int, chosen: int) -> Routing:
        """Which of `experts` work on which token, `chosen` for each."""
        with self._lock:
            if (experts, chosen) not in self._routings:
                self._routings[experts, chosen] = allocate_routing(self._tokens, experts, chosen)
            return self._routings[experts, chosen]
