"""The KV pools and the attention that models call, on torch CPU kernels.

One tensor for each layer group holds the keys and values of its layers; all are allocated once and zeroed, so masked
rows are always finite. A layer writes the step's keys and values first and attends afterwards; chunks that start at
position 0 read the fresh ones directly and skip the gather.
"""

from collections.abc import Iterable, Sequence

import torch

from forebay.contract.errors import InvalidSpec
from forebay.engine.attention.batch import AttentionBatch, DecodeGroup
from forebay.engine.loader.metadata import LayerGroup
from forebay.kernels.paged_attention import Scoring, decode_attention, gather_pages, prefill_attention, write_pages


class PagedCache:
    """Pools [layers, 2, pages, page_tokens, kv_heads, head_dim] by group; index 0 of axis 1 is keys, 1 values."""

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        heads: tuple[int, int],
        pages: Sequence[int],
        page_tokens: int,
        dtype: torch.dtype,
    ) -> None:
        """`heads` are (kv_heads, head_dim); `pages` is one count for each group."""
        self.page_tokens = page_tokens
        self.dtype = dtype
        self._place = {
            layer: (place, index) for place, group in enumerate(groups) for index, layer in enumerate(group.layers)
        }
        try:
            self._pools = [
                torch.zeros((len(group.layers), 2, count, page_tokens, *heads), dtype=dtype)
                for group, count in zip(groups, pages, strict=True)
            ]
        except RuntimeError as error:
            raise InvalidSpec(f"cannot allocate {list(pages)} KV pages: {error}", field="kv_cache_bytes") from error
        self._scratch = torch.empty(2, 0, dtype=dtype)

    @property
    def size_bytes(self) -> int:
        """Bytes of all pools."""
        return sum(pool.nbytes for pool in self._pools)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Key and value pool of one layer, each [pages, page_tokens, kv_heads, head_dim]."""
        group, place = self._place[index]
        return self._pools[group][place, 0], self._pools[group][place, 1]

    def copy_rows(self, group: int, copies: Iterable[tuple[int, int, int]]) -> None:
        """For each (source page, destination page, tokens): copy the first `tokens` rows in every layer of a group."""
        pool = self._pools[group]
        for source, destination, tokens in copies:
            pool[:, :, destination, :tokens] = pool[:, :, source, :tokens]

    def scratch(self, pages: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Two reusable buffers for gathered keys and values of `pages` pages.

        Buffers of tens of megabytes would otherwise be mapped and faulted in anew by every layer of every step.
        """
        page_shape = self._pools[0].shape[3:]
        needed = pages * page_shape.numel()
        if self._scratch.shape[1] < needed:
            self._scratch = torch.empty(2, needed, dtype=self.dtype)
        keys, values = self._scratch[0, :needed], self._scratch[1, :needed]
        return keys.view(pages, *page_shape), values.view(pages, *page_shape)


def paged_attention(
    cache: PagedCache,
    layer: int,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: AttentionBatch,
    scoring: Scoring,
) -> torch.Tensor:
    """Write `keys` and `values` [n, kv_heads, head_dim] to the pool, then attend; returns [n, heads * head_dim]."""
    key_pool, value_pool = cache.layer(layer)
    write_pages(key_pool, batch.slots, keys)
    write_pages(value_pool, batch.slots, values)
    if len(batch.decodes) == 1 and batch.decodes[0].tokens is None:
        return _attend_decodes(cache, key_pool, value_pool, query, batch.decodes[0], scoring).flatten(1)
    out = torch.empty_like(query)
    for group in batch.decodes:
        out[group.tokens] = _attend_decodes(cache, key_pool, value_pool, query[group.tokens], group, scoring)
    for chunk in batch.prefills:
        place = slice(chunk.first, chunk.first + chunk.count)
        if chunk.pages is None:
            seen_keys, seen_values = keys[place], values[place]
        else:
            seen_keys = gather_pages(key_pool, chunk.pages)[: chunk.length].to(query.dtype)
            seen_values = gather_pages(value_pool, chunk.pages)[: chunk.length].to(query.dtype)
        out[place] = prefill_attention(query[place], seen_keys, seen_values, chunk.bias, scoring)
    return out.flatten(1)


def _attend_decodes(
    cache: PagedCache,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    query: torch.Tensor,
    group: DecodeGroup,
    scoring: Scoring,
) -> torch.Tensor:
    key_rows, value_rows = cache.scratch(len(group.pages))
    shape = (group.rows, -1, *key_pool.shape[2:])
    keys = gather_pages(key_pool, group.pages, key_rows).view(shape).to(query.dtype)
    values = gather_pages(value_pool, group.pages, value_rows).view(shape).to(query.dtype)
    return decode_attention(query, keys, values, group.bias, scoring)
