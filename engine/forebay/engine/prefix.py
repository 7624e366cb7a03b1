"""Index of full KV pages by the tokens they hold, so that a later request starts where its prefix ends.

A block of tokens is entered under its chained digest when the step that filled its pages is committed, with one page
in each layer group; a page leaves when its pool evicts it. `match` finds the longest prefix whose pages are all there:
every page in a full group, in a window group those that the next token sees. After it at most one block whose first
tokens are worth copying in every group. It never covers a sequence's last token, because that one must be computed to
sample after it. The index owns no page and counts none: `blocks.py` does. Called by the planner, the scheduler and, on
eviction, by the pools.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forebay.contract.blockhash import block_digest, root_digest
from forebay.engine.limits import SchedulerLimits, first_visible_block

MAX_CHILDREN_SCANNED: Final = 16
"""Cached blocks compared for a partial match; bounds the work when many prompts part after the same block."""
_ABSENT: Final = -1


@dataclass(frozen=True, slots=True)
class Match:
    """What can be reused: the first `blocks` blocks, and `copy_tokens` tokens of the next when not 0.

    `pages[g]` are the pages of blocks [firsts[g], blocks) in layer group g, `copy_pages[g]` is the page to copy from.
    """

    blocks: int
    firsts: tuple[int, ...]
    pages: tuple[tuple[int, ...], ...]
    copy_pages: tuple[int, ...] = ()
    copy_tokens: int = 0


class _Entry:
    """A block of tokens with its page in each layer group, `_ABSENT` where there is none."""

    __slots__ = ("digest", "pages", "parent", "tokens")

    def __init__(self, digest: bytes, parent: bytes, tokens: tuple[int, ...], groups: int) -> None:
        self.digest = digest
        self.parent = parent
        self.tokens = tokens
        self.pages = [_ABSENT] * groups


class PrefixIndex:
    """Blocks by digest. Without `limits.prefix_reuse` it stays empty, so nothing is ever reused."""

    def __init__(self, fingerprint: bytes, limits: SchedulerLimits) -> None:
        self._fingerprint = fingerprint
        self._page_tokens = limits.page_tokens
        self._min_copy_tokens = limits.min_copy_tokens
        self._enabled = limits.prefix_reuse
        self._windows = tuple(group.window_tokens for group in limits.groups)
        self._full_groups = tuple(group for group, window in enumerate(self._windows) if not window)
        self._by_digest: dict[bytes, _Entry] = {}
        self._by_page: tuple[dict[int, _Entry], ...] = tuple({} for _ in limits.groups)
        self._children: dict[bytes, dict[bytes, _Entry]] = {}
        self._nothing = Match(0, (0,) * len(self._windows), ((),) * len(self._windows))

    def __len__(self) -> int:
        return len(self._by_digest)

    def knows(self, group: int, page: int) -> bool:
        """Whether a page of a layer group holds a known block."""
        return page in self._by_page[group]

    def extend(self, digests: list[bytes], tokens: Sequence[int], tenant: str, blocks: int) -> None:
        """Grow `digests` in place until it has the digests of the first `blocks` blocks of `tokens`."""
        size = self._page_tokens
        parent = digests[-1] if digests else root_digest(self._fingerprint, tenant)
        for block in range(len(digests), blocks):
            parent = block_digest(parent, tokens[block * size : (block + 1) * size])
            digests.append(parent)

    def match(self, digests: list[bytes], tokens: Sequence[int], tenant: str) -> Match:
        """The longest reusable prefix of `tokens`; grows `digests` as `extend` does."""
        if not self._by_digest:
            return self._nothing
        entries = self._known_blocks(digests, tokens, tenant)
        blocks = self._longest(entries)
        size = self._page_tokens
        firsts = self._firsts(blocks)
        parent = digests[blocks - 1] if blocks else root_digest(self._fingerprint, tenant)
        wanted = tokens[blocks * size : min((blocks + 1) * size, len(tokens) - 1)]
        copy_pages, copy_tokens = self._partial(parent, wanted)
        pages = [tuple([entry.pages[group] for entry in entries[first:blocks]]) for group, first in enumerate(firsts)]
        return Match(blocks, firsts, tuple(pages), copy_pages, copy_tokens)

    def _known_blocks(self, digests: list[bytes], tokens: Sequence[int], tenant: str) -> list[_Entry]:
        """Entries of the first blocks, as long as every full group has their pages."""
        entries: list[_Entry] = []
        for block in range((len(tokens) - 1) // self._page_tokens):
            self.extend(digests, tokens, tenant, block + 1)
            entry = self._by_digest.get(digests[block])
            if entry is None or any(entry.pages[group] == _ABSENT for group in self._full_groups):
                break
            entries.append(entry)
        return entries

    def _longest(self, entries: list[_Entry]) -> int:
        """How many of `entries` can be reused: every window group must have the pages that the token after sees."""
        if len(self._full_groups) == len(self._windows):
            return len(entries)
        blocks = len(entries)
        while (gap := self._gap(entries, blocks)) >= 0:
            blocks = gap
        return blocks

    def _gap(self, entries: list[_Entry], blocks: int) -> int:
        """The last of `blocks` blocks that a window misses, else -1; no longer prefix with it can be reused either."""
        gap = -1
        for group, first in enumerate(self._firsts(blocks)):
            for block in range(blocks - 1, max(first, gap + 1) - 1, -1):
                if entries[block].pages[group] == _ABSENT:
                    gap = block
                    break
        return gap

    def _firsts(self, blocks: int) -> tuple[int, ...]:
        size = self._page_tokens
        return tuple([first_visible_block(blocks * size, window, size) for window in self._windows])

    def _partial(self, parent: bytes, wanted: Sequence[int]) -> tuple[tuple[int, ...], int]:
        best_pages: tuple[int, ...] = ()
        best = max(self._min_copy_tokens, 1) - 1
        children = self._children.get(parent, {})
        for entry, _ in zip(reversed(children.values()), range(MAX_CHILDREN_SCANNED), strict=False):
            common = _common_prefix(entry.tokens, wanted)
            if common > best and _ABSENT not in entry.pages:
                best_pages, best = tuple(entry.pages), common
        return (best_pages, best) if best_pages else ((), 0)

    def enter(self, pages: Sequence[int], digests: list[bytes], block: int, tokens: Sequence[int], tenant: str) -> None:
        """Make block number `block` of `tokens` findable in `pages`, one a group; pages known already stay."""
        if not self._enabled:
            return
        self.extend(digests, tokens, tenant, block + 1)
        digest = digests[block]
        entry = self._by_digest.get(digest)
        if entry is None:
            parent = digests[block - 1] if block else root_digest(self._fingerprint, tenant)
            size = self._page_tokens
            entry = _Entry(digest, parent, tuple(tokens[block * size : (block + 1) * size]), len(self._windows))
            self._by_digest[digest] = entry
            self._children.setdefault(parent, {})[digest] = entry
        for group, page in enumerate(pages):
            if entry.pages[group] == _ABSENT:
                entry.pages[group] = page
                self._by_page[group][page] = entry

    def drop(self, group: int, page: int) -> None:
        """Forget an evicted page, and its block when no other group has a page of it."""
        entry = self._by_page[group].pop(page)
        entry.pages[group] = _ABSENT
        if any(left != _ABSENT for left in entry.pages):
            return
        del self._by_digest[entry.digest]
        siblings = self._children[entry.parent]
        del siblings[entry.digest]
        if not siblings:
            del self._children[entry.parent]


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
