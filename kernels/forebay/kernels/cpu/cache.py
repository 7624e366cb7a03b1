"""Paged KV storage of one layer in the library's layout, and its plain form for tests and other paths.

`pages` is [pages, kv_heads, 2, page_tokens * head_dim]. Index 0 holds K in tiles of 16 tokens as [head_dim][16 tokens],
index 1 holds V as [page_tokens][head_dim]. bf16 comes in pairs: two dimensions of a key, two tokens of a value, so K is
[head_dim / 2][16 tokens][2] and V is [page_tokens / 2][head_dim][2]. The storage needs no fill: slots that were never
written are never read as numbers that count (the one that shares words with a row's last value is cleared with it).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
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
        if len(table) * self.page_tokens < tokens:
            raise ValueError(f"{len(table)} pages of {self.page_tokens} tokens do not hold {tokens}")
        chosen = self.pages[list(table)].float()
        keys = self._key_view(chosen[:, :, 0]).permute(0, 2, 4, 1, 3, 5).reshape(-1, self.kv_heads, self.head_dim)
        values = self._value_view(chosen[:, :, 1]).permute(0, 2, 4, 1, 3).reshape(-1, self.kv_heads, self.head_dim)
        return keys[:tokens].contiguous(), values[:tokens].contiguous()

    def write(self, table: Sequence[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store positions 0.. from keys and values [tokens, kv_heads, head_dim]; the inverse of `read`."""
        key_view, value_view = self._key_view(self.pages[:, :, 0]), self._value_view(self.pages[:, :, 1])
        pair = self._per_word
        for position in range(keys.shape[0]):
            page, slot = table[position // self.page_tokens], position % self.page_tokens
            rows = keys[position].view(self.kv_heads, -1, pair).to(self.pages.dtype)
            key_view[page, :, slot // SUBTILE_TOKENS, :, slot % SUBTILE_TOKENS] = rows
            value_view[page, :, slot // pair, :, slot % pair] = values[position].to(self.pages.dtype)
            value_view[page, :, slot // pair, :, slot % pair + 1 :] = 0

    @property
    def _per_word(self) -> int:
        return 4 // self.pages.dtype.itemsize

    def _key_view(self, part: torch.Tensor) -> torch.Tensor:
        """[pages, kv_heads, tiles, head_dim / pair, 16, pair] of the K part of pages."""
        words = self.head_dim // self._per_word
        return part.view(*part.shape[:2], -1, words, SUBTILE_TOKENS, self._per_word)

    def _value_view(self, part: torch.Tensor) -> torch.Tensor:
        """[pages, kv_heads, tokens / pair, head_dim, pair] of the V part of pages."""
        return part.view(*part.shape[:2], -1, self.head_dim, self._per_word)


def page_bytes(kv_heads: int, page_tokens: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of one page of one layer, K and V."""
    return 2 * kv_heads * page_tokens * head_dim * dtype.itemsize


def allocate_cache(
    pages: int, kv_heads: int, page_tokens: int, head_dim: int, dtype: torch.dtype = torch.bfloat16, group: int = 0
) -> KvCache:
    """Zeroed pages of one layer, in large memory pages. `ValueError` for shapes that the library does not take."""
    if page_tokens % SUBTILE_TOKENS or not page_tokens:
        raise ValueError(f"page_tokens {page_tokens}: a multiple of {SUBTILE_TOKENS} is needed")
    if head_dim % 16 or not 16 <= head_dim <= 512:
        raise ValueError(f"head_dim {head_dim}: a multiple of 16 from 16 to 512 is needed")
    if number_kind(dtype) not in (NumberKind.BF16, NumberKind.FP32) or not 0 <= group < MAX_GROUPS:
        raise ValueError(f"cache of {dtype} in group {group}: bf16 or fp32, groups 0..{MAX_GROUPS - 1}")
    shape = (pages, kv_heads, 2, page_tokens * head_dim)
    # numpy asks the kernel for large memory pages, which torch does not; decode attention is 10 % faster with them.
    words = np.zeros(math.prod(shape) * dtype.itemsize // 4, dtype=np.int32)
    return KvCache(torch.from_numpy(words).view(dtype).view(shape), page_tokens, head_dim, group)
