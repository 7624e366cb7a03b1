"""The runner's own memory of each slot: last token, page tables as arrays, and how its tokens are chosen.

Slots outlive steps: a plan says how a request starts only when it takes a slot, and a decode planned before its input
token is known reads the token here. Steps run in launch order, so what an older epoch writes is always replaced before
a newer one reads it. What a plain greedy row needs lies in arrays of one entry a slot, so that a step of such rows
does no work by row. The runner's worker thread is the only user.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from forebay.engine.plan import TOKEN_ON_DEVICE
from forebay.engine.request import RequestKind, SlotStart
from forebay.engine.runner.executor import IntArray, TableArray
from forebay.engine.sampling.row import Row
from forebay.engine.structured.matcher import Matcher

OpenGrammar = Callable[[str, frozenset[int]], Matcher]
"""A new matcher for a grammar's key and the request's stop tokens; a `ForebayError` ends that request only."""

_FIRST_WIDTH = 16


class SlotTable:
    """State of `size` slots for a vocabulary of `vocab` tokens; `open_grammar` gives a new matcher for a key."""

    def __init__(self, size: int, vocab: int, open_grammar: OpenGrammar) -> None:
        self._vocab = vocab
        self._open_grammar = open_grammar
        self._last_tokens = np.zeros(size, dtype=np.int64)
        self._seeds = np.zeros(size, dtype=np.uint64)
        self._plain = np.ones(size, dtype=np.bool_)
        self._embeds = np.zeros(size, dtype=np.bool_)
        self._rows: list[Row | None] = [None] * size
        self._faults: dict[int, str] = {}
        self._groups: list[_GroupTables] = []

    def start(self, slot: int, start: SlotStart) -> None:
        """A request takes `slot`; its state is rebuilt from the tokens it has. A broken grammar is the slot's fault."""
        self._faults.pop(slot, None)
        self._seeds[slot] = start.sampling.seed
        self._embeds[slot] = start.kind is RequestKind.EMBED
        self._rows[slot] = None
        self._plain[slot] = True
        try:
            matcher = self._open_grammar(start.grammar, start.stop_ids) if start.grammar else None
            row = Row(start.sampling, start.tokens[: start.prompt_tokens], start.stop_ids, self._vocab, matcher)
            for token in start.tokens[start.prompt_tokens :]:
                row.accept(token)
        except Exception as error:  # noqa: BLE001 - a grammar library's failure must end this request only
            self.fail(slot, f"the grammar cannot be used: {error}")
        else:
            self._rows[slot] = row
            self._plain[slot] = row.greedy_only

    def row(self, slot: int) -> Row:
        """How the slot's tokens are chosen; only for slots with a request and no fault."""
        row = self._rows[slot]
        if row is None:
            raise LookupError(f"slot {slot} has no request")
        return row

    def fail(self, slot: int, message: str) -> None:
        """The slot's sequence cannot go on; whatever is computed for it until it starts anew is void."""
        self._faults[slot] = message
        self._rows[slot] = None
        self._plain[slot] = True

    def fault(self, slot: int) -> str | None:
        """Why the slot's sequence cannot go on; None when it can."""
        return self._faults.get(slot)

    def all_plain(self, slots: IntArray) -> bool:
        """Whether every one of `slots` just takes the largest logit, without a fault among them."""
        return not self._faults and bool(self._plain[slots].all())

    def embeds(self, slots: IntArray) -> npt.NDArray[np.bool_]:
        """Which of `slots` want an embedding instead of a token."""
        return self._embeds[slots]

    def seeds(self, slots: IntArray) -> npt.NDArray[np.uint64]:
        """Seeds of `slots`."""
        return self._seeds[slots]

    def fill_tokens(self, tokens: IntArray, slots: IntArray) -> IntArray:
        """`tokens` [n] with every TOKEN_ON_DEVICE replaced by the last token of its row's slot, `slots` [n]."""
        return np.where(tokens == TOKEN_ON_DEVICE, self._last_tokens[slots], tokens)

    def remember(self, slots: IntArray, tokens: IntArray) -> None:
        """Keep the last tokens just chosen for `slots`."""
        self._last_tokens[slots] = tokens

    def tables(self, slots: IntArray, page_tables: Sequence[Sequence[tuple[int, ...]]]) -> tuple[TableArray, ...]:
        """Page tables of a step's rows, by group, as arrays padded with any page."""
        while len(self._groups) < len(page_tables):
            self._groups.append(_GroupTables(len(self._rows)))
        return tuple(group.gather(slots, tables) for group, tables in zip(self._groups, page_tables, strict=False))


class _GroupTables:
    """Page tables of all slots in one layer group; a row is written anew only when its plan brings another tuple."""

    def __init__(self, size: int) -> None:
        self._seen: list[tuple[int, ...]] = [()] * size
        self._pages = np.zeros((size, _FIRST_WIDTH), dtype=np.int32)

    def gather(self, slots: IntArray, tables: Sequence[tuple[int, ...]]) -> TableArray:
        width = max(map(len, tables))
        if width > self._pages.shape[1]:
            grown = np.zeros((len(self._pages), 2 * width), dtype=np.int32)
            grown[:, : self._pages.shape[1]] = self._pages
            self._pages = grown
        for slot, table in zip(slots.tolist(), tables, strict=True):
            # Identity, not equality: comparing would cost what it saves. A tuple that is kept cannot be another one.
            if self._seen[slot] is not table:
                self._seen[slot] = table
                self._pages[slot, : len(table)] = table
        return self._pages[slots, :width]
