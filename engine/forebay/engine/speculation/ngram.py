"""Prompt lookup: when the last tokens occurred before, propose what followed them then.

One dictionary entry for each distinct pair of tokens leads to the newest place after that pair, and a chain from each
place to the one before. A look-up follows the chain for a bounded number of places and takes the longest match of 4 to
2 tokens, the newest of equals. Proposals may run into themselves, which continues a repetition as long as asked.
Appending a token and looking up cost microseconds; memory is a few machine words for each token.
"""

from collections.abc import Sequence
from typing import Final

from forebay.engine.speculation.drafter import DraftRow

SHORTEST_MATCH: Final = 2
LONGEST_MATCH: Final = 4
_MAX_PLACES: Final = 24


class NgramIndex:
    """The tokens of one sequence, findable by the pairs in them."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._newest: dict[tuple[int, int], int] = {}
        # By place: the place before after the same pair, -1 when there is none. No pair ends before place 2.
        self._earlier = [-1] * SHORTEST_MATCH
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens; a pair is entered when the token after it is known."""
        known, newest, earlier = self._tokens, self._newest, self._earlier
        for token in tokens:
            place = len(known)
            if place >= SHORTEST_MATCH:
                pair = (known[-2], known[-1])
                earlier.append(newest.get(pair, -1))
                newest[pair] = place
            known.append(token)

    def propose(self, limit: int) -> list[int]:
        """Up to `limit` tokens that followed the longest earlier match of the end; empty without one."""
        place = self._best_place()
        if place < 0:
            return []
        known = self._tokens
        proposed = known[place : place + limit]
        while len(proposed) < limit:
            # The source has reached the end of what is known and goes on in the proposal itself.
            proposed.append(proposed[place + len(proposed) - len(known)])
        return proposed

    def _best_place(self) -> int:
        known = self._tokens
        if len(known) < SHORTEST_MATCH:
            return -1
        place = self._newest.get((known[-2], known[-1]), -1)
        best, best_length = -1, 0
        for _ in range(_MAX_PLACES):
            if place < 0 or best_length == LONGEST_MATCH:
                break
            length = self._match_length(place)
            if length > best_length:
                best, best_length = place, length
            place = self._earlier[place]
        return best

    def _match_length(self, place: int) -> int:
        """How many tokens before `place`, 4 at most, equal those at the end; the pair is known to."""
        known, length = self._tokens, SHORTEST_MATCH
        while length < min(LONGEST_MATCH, place) and known[place - length - 1] == known[-length - 1]:
            length += 1
        return length


class NgramDrafter:
    """One index for each slot."""

    def __init__(self) -> None:
        self._indexes: dict[int, NgramIndex] = {}

    def start(self, slot: int, tokens: Sequence[int]) -> None:
        """Index `tokens` for `slot`."""
        self._indexes[slot] = NgramIndex(tokens)

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Append to the slot's index."""
        self._indexes[slot].extend(tokens)

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Look up the end of every row that wants tokens."""
        return [self._indexes[row.slot].propose(row.limit) if row.limit else [] for row in rows]

    def forget(self, slot: int) -> None:
        """Drop the slot's index."""
        self._indexes.pop(slot, None)
