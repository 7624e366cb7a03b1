"""Index of full KV pages by the tokens they hold, so that a later request starts where its prefix ends.

A page is entered under its chained digest when the step that filled it is committed, and leaves when the pool evicts
it. `match` finds whole pages to share and at most one page whose first tokens are worth copying; it never covers a
sequence's last token, because that one must be computed to sample after it. The index owns no page and counts none:
`blocks.py` does. Called by the scheduler and, on eviction, by the pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.contract.blockhash import block_digest, root_digest

MAX_CHILDREN_SCANNED = 16
"""Cached pages compared for a partial match; bounds the work when many prompts part after the same page."""


@dataclass(frozen=True, slots=True)
class Match:
    """What can be reused: `pages` in order, and `copy_tokens` first tokens of `copy_page` when not 0."""

    pages: tuple[int, ...]
    copy_page: int
    copy_tokens: int


NO_MATCH = Match((), 0, 0)


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    parent: bytes
    tokens: tuple[int, ...]


class PrefixIndex:
    """Pages by digest. With `enabled` False it stays empty, so nothing is ever reused."""

    def __init__(self, fingerprint: bytes, page_tokens: int, min_copy_tokens: int, *, enabled: bool) -> None:
        self._fingerprint = fingerprint
        self._page_tokens = page_tokens
        self._min_copy_tokens = min_copy_tokens
        self._enabled = enabled
        self._by_digest: dict[bytes, int] = {}
        self._by_page: dict[int, _Entry] = {}
        self._children: dict[bytes, dict[int, None]] = {}

    def __contains__(self, page: int) -> bool:
        return page in self._by_page

    def __len__(self) -> int:
        return len(self._by_page)

    def extend(self, digests: list[bytes], tokens: Sequence[int], tenant: str, blocks: int) -> None:
        """Grow `digests` in place until it has the digests of the first `blocks` pages of `tokens`."""
        size = self._page_tokens
        parent = digests[-1] if digests else root_digest(self._fingerprint, tenant)
        for block in range(len(digests), blocks):
            parent = block_digest(parent, tokens[block * size : (block + 1) * size])
            digests.append(parent)

    def match(self, digests: list[bytes], tokens: Sequence[int], tenant: str) -> Match:
        """The longest reusable prefix of `tokens`; grows `digests` as `extend` does."""
        if not self._by_page:
            return NO_MATCH
        size, usable = self._page_tokens, len(tokens) - 1
        pages: list[int] = []
        parent = root_digest(self._fingerprint, tenant)
        for block in range(usable // size):
            self.extend(digests, tokens, tenant, block + 1)
            page = self._by_digest.get(digests[block])
            if page is None:
                break
            pages.append(page)
            parent = digests[block]
        start = len(pages) * size
        copy_page, copy_tokens = self._partial(parent, tokens[start : min(start + size, usable)])
        return Match(tuple(pages), copy_page, copy_tokens)

    def _partial(self, parent: bytes, wanted: Sequence[int]) -> tuple[int, int]:
        best_page, best = 0, 0
        for page, _ in zip(reversed(self._children.get(parent, {})), range(MAX_CHILDREN_SCANNED), strict=False):
            common = _common_prefix(self._by_page[page].tokens, wanted)
            if common > best:
                best_page, best = page, common
        return (best_page, best) if best >= self._min_copy_tokens else (0, 0)

    def enter(self, page: int, digests: list[bytes], block: int, tokens: Sequence[int], tenant: str) -> None:
        """Make `page`, which holds block number `block` of `tokens`, findable; the first page of a digest stays."""
        if not self._enabled:
            return
        self.extend(digests, tokens, tenant, block + 1)
        digest = digests[block]
        if digest in self._by_digest or page in self._by_page:
            return
        parent = digests[block - 1] if block else root_digest(self._fingerprint, tenant)
        size = self._page_tokens
        self._by_digest[digest] = page
        self._by_page[page] = _Entry(digest, parent, tuple(tokens[block * size : (block + 1) * size]))
        self._children.setdefault(parent, {})[page] = None

    def drop(self, page: int) -> None:
        """Forget an evicted page."""
        entry = self._by_page.pop(page)
        del self._by_digest[entry.digest]
        siblings = self._children[entry.parent]
        del siblings[page]
        if not siblings:
            del self._children[entry.parent]


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
