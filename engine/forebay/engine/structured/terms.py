"""Grammars as small immutable terms, before any library's syntax. Pure.

A term stands for a set of texts; `None` stands for the empty set, and the builders below carry it through. Regular
terms (no `Rule`) may be wrapped in a `Lexeme`, one lexical unit. `emit_lark.py` and `emit_ebnf.py` write them out.
Every repetition has a maximum, so every walk through a grammar without recursion and without `Free` text ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of inclusive, sorted, disjoint code point ranges."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Text:
    """Exactly this text; may be empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Seq:
    """The items one after another."""

    items: tuple["Term", ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of at least one items."""

    items: tuple["Term", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`minimum` to `maximum` times the item."""

    item: "Term"
    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True)
class Both:
    """Texts that both regular terms allow."""

    left: "Term"
    right: "Term"


@dataclass(frozen=True, slots=True)
class Without:
    """Texts that the regular `left` allows and the regular `right` does not."""

    left: "Term"
    right: "Term"


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A regular term as one lexical unit."""

    term: "Term"


@dataclass(frozen=True, slots=True)
class Free:
    """Any text at all, without a bound: for prose around constrained parts."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A reference to a named rule."""

    name: str


Term = Chars | Text | Seq | Alt | Repeat | Both | Without | Lexeme | Free | Rule
FREE: Final = Free()
EMPTY: Final = Text("")
_LAST: Final = 0x10FFFF


def seq(*items: Term | None) -> Term | None:
    """The items in a row; None when one is None."""
    kept: list[Term] = []
    for item in items:
        if item is None:
            return None
        if item != EMPTY:
            kept.append(item)
    if not kept:
        return EMPTY
    return kept[0] if len(kept) == 1 else Seq(tuple(kept))


def alt(items: Iterable[Term | None]) -> Term | None:
    """Any of the items that are not None; None when there is none."""
    kept = tuple(dict.fromkeys(item for item in items if item is not None))
    if not kept:
        return None
    return kept[0] if len(kept) == 1 else Alt(kept)


def repeat(item: Term | None, minimum: int, maximum: int) -> Term | None:
    """The item `minimum` to `maximum` times; zero times is possible even when the item is None."""
    if maximum < minimum or (item is None and minimum > 0):
        return None
    if item is None or maximum == 0:
        return EMPTY
    return item if minimum == maximum == 1 else Repeat(item, minimum, maximum)


def both(left: Term | None, right: Term | None) -> Term | None:
    """Texts of both regular terms."""
    return None if left is None or right is None else Both(left, right)


def without(left: Term | None, right: Term | None) -> Term | None:
    """Texts of the left regular term that the right one does not have."""
    return left if left is None or right is None else Without(left, right)


def lexeme(term: Term | None) -> Term | None:
    """The term as one lexical unit."""
    return None if term is None else Lexeme(term)


def chars(*ranges: tuple[int, int]) -> Chars | None:
    """A character class from any ranges; None when they are empty."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        elif first <= last:
            merged.append((first, last))
    return Chars(tuple(merged)) if merged else None


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All characters (without surrogates) outside sorted, disjoint ranges."""
    kept: list[tuple[int, int]] = []
    begin = 0
    for first, last in sorted([*ranges, (0xD800, 0xDFFF)]):
        if first > begin:
            kept.append((begin, first - 1))
        begin = max(begin, last + 1)
    if begin <= _LAST:
        kept.append((begin, _LAST))
    return tuple(kept)


def overlap(left: Ranges, right: Ranges) -> Ranges:
    """Characters in both."""
    found = [(max(a, c), min(b, d)) for a, b in left for c, d in right if max(a, c) <= min(b, d)]
    return tuple(sorted(found))


ANY_CHAR: Final = Chars(complement(()))


def lengths(term: Term) -> tuple[int, int]:
    """Fewest and most characters of a regular term's texts."""
    match term:
        case Chars():
            return 1, 1
        case Text(text):
            return len(text), len(text)
        case Repeat(item, minimum, maximum):
            low, high = lengths(item)
            return low * minimum, high * maximum
        case Without(left, _) | Lexeme(left):
            return lengths(left)
        case Seq(items) | Alt(items):
            lows, highs = zip(*map(lengths, items), strict=True)
            return (sum(lows), sum(highs)) if isinstance(term, Seq) else (min(lows), max(highs))
        case Both(left, right):
            lows, highs = zip(lengths(left), lengths(right), strict=True)
            return max(lows), min(highs)
        case _:
            raise TypeError("only bounded regular terms have a length")


def is_composed(term: Term) -> bool:
    """Whether a term has an intersection or difference in it."""
    match term:
        case Both() | Without():
            return True
        case Seq(items) | Alt(items):
            return any(map(is_composed, items))
        case Repeat(item, _, _) | Lexeme(item):
            return is_composed(item)
    return False
