"""KV pools in the C library's layout, one for each layer group.

A pool is one tensor over the group's layers, so that copying a page copies all of them. It is allocated and made
resident once: memory does not grow while requests are served.
"""

from collections.abc import Iterable

import torch

from forebay.contract.errors import InvalidSpec
from forebay.engine.models.decoder import DecoderShape
from forebay.engine.runner.executor import ExecutorSizes
from forebay.kernels.cpu.cache import KvCache


class KvPools:
    """Pools [layers, pages, kv_heads, 2, page_tokens * head_dim], as `KvCache` describes a layer's pages."""

    def __init__(self, shape: DecoderShape, sizes: ExecutorSizes, dtype: torch.dtype) -> None:
        self._page_tokens = sizes.page_tokens
        self._head_dim = shape.head_dim
        self._places = {layer: (g, at) for g, group in enumerate(shape.groups) for at, layer in enumerate(group.layers)}
        width = sizes.page_tokens * shape.head_dim
        try:
            self._pools = tuple(
                torch.zeros(len(group.layers), pages, shape.kv_heads, 2, width, dtype=dtype)
                for group, pages in zip(shape.groups, sizes.pages, strict=True)
            )
        except RuntimeError as error:
            raise InvalidSpec(f"cannot allocate KV pages: {error}", field="kv_cache_bytes") from error

    @property
    def size_bytes(self) -> int:
        """Bytes of all pools."""
        return sum(pool.nbytes for pool in self._pools)

    def layer(self, index: int) -> KvCache:
        """The pages of one layer of the model."""
        group, at = self._places[index]
        return KvCache(self._pools[group][at], self._page_tokens, self._head_dim, group)

    def copy_pages(self, group: int, copies: Iterable[tuple[int, int, int]]) -> None:
        """For each (source page, target page, tokens): copy the page in all layers of a group.

        Slots from `tokens` on are copied as well: they are written before anything reads them.
        """
        pool = self._pools[group]
        for source, target, _ in copies:
            pool[:, target] = pool[:, source]
