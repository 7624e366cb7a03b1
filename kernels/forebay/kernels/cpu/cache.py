"""Paged KV storage of one layer in the library's layout, and its plain form for tests and other paths.

`pages` is [pages, kv_heads, 2, page_tokens * head_dim]: index 0 holds K in tiles of 16 tokens as [head_dim][16 tokens],
index 1 holds V as [page_tokens][head_dim]. Page 0 is a page like any other. Slots that were never written are never
read as numbers that count, so the storage needs no fill.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from forebay.kernels.cpu.op import number_kind
from forebay.kernels.cpu.records import MAX_GROUPS, SUBTILE_TOKENS, CacheRecord, NumberKind


@dataclass(frozen=True, slots=True)
class KvCache:
    """Pages of one layer; `group` is the index of the page table in the step that leads to them."""

    pages: torch.Tensor
    page_tokens: int
    head_dim: int
    group: int = 0

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""
        return self.pages.shape[1]

    def record(self) -> CacheRecord:
        """The C form."""
        return CacheRecord(
            pages=self.pages.data_ptr(),
            page_tokens=self.page_tokens,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            kind=number_kind(self.pages.dtype),
            group=self.group,
        )

    def copy_page(self, source: int, target: int) -> None:
        """Copy all slots of a page; slots after the live ones are never read, so no count is needed."""
        self.pages[target].copy_(self.pages[source])

    def read(self, table: Sequence[int], tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of positions 0..tokens - 1 in fp32, each [tokens, kv_heads, head_dim]."""
        chosen = self.pages[list(table)].float()
        count, heads = chosen.shape[:2]
        tiled = chosen[:, :, 0].view(count, heads, -1, self.head_dim, SUBTILE_TOKENS)
        keys = tiled.permute(0, 2, 4, 1, 3).reshape(-1, heads, self.head_dim)
        values = chosen[:, :, 1].view(count, heads, -1, self.head_dim).transpose(1, 2).reshape(-1, heads, self.head_dim)
        return keys[:tokens].contiguous(), values[:tokens].contiguous()

    def write(self, table: Sequence[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store positions 0.. from keys and values [tokens, kv_heads, head_dim]; the inverse of `read`."""
        for position in range(keys.shape[0]):
            page, slot = table[position // self.page_tokens], position % self.page_tokens
            tile = self.pages[page, :, 0].view(self.kv_heads, -1, self.head_dim, SUBTILE_TOKENS)
            tile[:, slot // SUBTILE_TOKENS, :, slot % SUBTILE_TOKENS] = keys[position].to(self.pages.dtype)
            rows = self.pages[page, :, 1].view(self.kv_heads, self.page_tokens, self.head_dim)
            rows[:, slot] = values[position].to(self.pages.dtype)


def page_bytes(kv_heads: int, page_tokens: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of one page of one layer, K and V."""
    return 2 * kv_heads * page_tokens * head_dim * dtype.itemsize


def allocate_cache(
    pages: int, kv_heads: int, page_tokens: int, head_dim: int, dtype: torch.dtype = torch.bfloat16, group: int = 0
) -> KvCache:
    """Uninitialised pages of one layer. `ValueError` for shapes that the library does not take."""
    if page_tokens % SUBTILE_TOKENS or not page_tokens:
        raise ValueError(f"page_tokens {page_tokens}: a multiple of {SUBTILE_TOKENS} is needed")
    if head_dim % 16 or not 16 <= head_dim <= 512:
        raise ValueError(f"head_dim {head_dim}: a multiple of 16 from 16 to 512 is needed")
    if number_kind(dtype) not in (NumberKind.BF16, NumberKind.FP32) or not 0 <= group < MAX_GROUPS:
        raise ValueError(f"cache of {dtype} in group {group}: bf16 or fp32, groups 0..{MAX_GROUPS - 1}")
    return KvCache(torch.empty(pages, kv_heads, 2, page_tokens * head_dim, dtype=dtype), page_tokens, head_dim, group)
