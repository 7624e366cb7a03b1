"""Regular expressions of JSON schemas (ECMA-262) as terms over the strings they match. Pure.

What cannot be a regular set, or means different things to different validators, is refused by name: look-around,
back references, word boundaries, property classes, anchors in the middle. Open repetitions get a stated maximum.
Classes like `\\w` are narrowed to what every reading of them agrees on.
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from forebay.engine.structured.terms import (
    ANY_CHAR,
    EMPTY,
    Chars,
    Ranges,
    Term,
    alt,
    chars,
    complement,
    repeat,
    seq,
)

MAX_REPEAT: Final = 4096
MAX_DEPTH: Final = 40
MAX_EDGES: Final = 64
_LINE_ENDS: Final = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_DIGITS: Final = ((0x30, 0x39),)
_WORD: Final = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Final = ((0x09, 0x0D), (0x20, 0x20))
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_SYNTAX: Final = frozenset("^$\\.*+?()[]{}|/-")


class BadPattern(ValueError):
    """The pattern is not valid or not supported; the text says which part."""


@dataclass(frozen=True, slots=True)
class _Anchor:
    """`^` or `$`."""

    is_start: bool


@dataclass(frozen=True, slots=True)
class _Row:
    """Items in a row, anchors and groups among them."""

    items: "tuple[_Node, ...]"


@dataclass(frozen=True, slots=True)
class _Choice:
    """One of several rows."""

    rows: tuple[_Row, ...]


_Node = Term | _Anchor | _Choice


def pattern_term(pattern: str, longest: int) -> Term | None:
    """Strings in which the pattern is found; open repetitions and unanchored ends have at most `longest` characters.

    None when no string matches. Raises `BadPattern`.
    """
    parser = _Parser(pattern, longest)
    choice = parser.choice(0)
    if not parser.ended:
        raise BadPattern("an unmatched )")
    around = repeat(ANY_CHAR, 0, longest)
    found: list[Term | None] = []
    for row in _edges(choice):
        inner, starts, ends = _stripped(row)
        found.append(seq(EMPTY if starts else around, inner, EMPTY if ends else around))
    return alt(found)


def _edges(choice: _Choice) -> list[_Row]:
    """The rows of a choice, with groups that hold anchors at their edges taken apart."""
    rows: list[_Row] = []
    open_rows = list(choice.rows)
    while open_rows:
        row = open_rows.pop(0)
        opened = _opened(row)
        if opened is None:
            rows.append(row)
        else:
            open_rows += opened
        if len(rows) + len(open_rows) > MAX_EDGES:
            raise BadPattern("too many alternatives with anchors")
    return rows


def _opened(row: _Row) -> list[_Row] | None:
    """A row with its first group that holds an anchor replaced by each of the group's rows; None without one."""
    for place, item in enumerate(row.items):
        if isinstance(item, _Choice) and _has_anchor(item):
            return [_Row((*row.items[:place], *inner.items, *row.items[place + 1 :])) for inner in item.rows]
    return None


def _has_anchor(choice: _Choice) -> bool:
    return any(
        isinstance(item, _Anchor) or (isinstance(item, _Choice) and _has_anchor(item))
        for row in choice.rows
        for item in row.items
    )


def _stripped(row: _Row) -> tuple[Term | None, bool, bool]:
    """A row's term without anchors, and whether it was anchored at its start and its end."""
    items = list(row.items)
    starts = ends = False
    while items and isinstance(items[0], _Anchor) and items[0].is_start:
        starts = True
        items.pop(0)
    while items and isinstance(items[-1], _Anchor) and not items[-1].is_start:
        ends = True
        items.pop()
    if any(isinstance(item, _Anchor) for item in items):
        raise BadPattern("^ and $ are supported at the ends of the pattern only")
    return seq(*map(_term, items)), starts, ends


def _term(node: _Node) -> Term | None:
    if isinstance(node, _Choice):
        return alt(_plain_row(row) for row in node.rows)
    if isinstance(node, _Anchor):
        raise BadPattern("^ and $ are supported at the ends of the pattern only")
    return node


def _plain_row(row: _Row) -> Term | None:
    return seq(*map(_term, row.items))


class _Parser:
    """Recursive descent over one pattern."""

    def __init__(self, pattern: str, longest: int) -> None:
        self._text = pattern
        self._at = 0
        self._longest = longest

    @property
    def ended(self) -> bool:
        return self._at >= len(self._text)

    def choice(self, depth: int) -> _Choice:
        if depth > MAX_DEPTH:
            raise BadPattern(f"groups are nested deeper than {MAX_DEPTH}")
        rows = [self._row(depth)]
        while self._take("|"):
            rows.append(self._row(depth))
        return _Choice(tuple(rows))

    def _row(self, depth: int) -> _Row:
        items: list[_Node] = []
        while not self.ended and self._text[self._at] not in "|)":
            items.append(self._quantified(self._atom(depth)))
        return _Row(tuple(items))

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _next(self) -> str:
        if self.ended:
            raise BadPattern("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _atom(self, depth: int) -> _Node:
        char = self._next()
        match char:
            case "^" | "$":
                return _Anchor(char == "^")
            case ".":
                return Chars(complement(_LINE_ENDS))
            case "(":
                return self._group(depth)
            case "[":
                return self._class()
            case "\\":
                return self._escape()
            case "*" | "+" | "?" | "{":
                raise BadPattern(f"nothing to repeat before {char}")
        return Chars(((ord(char), ord(char)),))

    def _group(self, depth: int) -> _Node:
        for mark in ("?=", "?!", "?<=", "?<!"):
            if self._text.startswith(mark, self._at):
                raise BadPattern(f"look-around ({mark}) is not supported")
        if self._take("?<"):
            while self._next() != ">":
                pass
        elif self._take("?") and not self._take(":"):
            raise BadPattern("group options are not supported")
        inner = self.choice(depth + 1)
        if not self._take(")"):
            raise BadPattern("an unmatched (")
        return inner

    def _quantified(self, atom: _Node) -> _Node:
        bounds = self._quantifier()
        if bounds is None:
            return atom
        self._take("?")
        if not self.ended and self._text[self._at] in "*+?":
            raise BadPattern("a repeated repetition")
        minimum, maximum = bounds
        if minimum > MAX_REPEAT or maximum > MAX_REPEAT:
            raise BadPattern(f"repetitions above {MAX_REPEAT} are not supported")
        if maximum < minimum:
            raise BadPattern("a repetition whose maximum is below its minimum")
        if isinstance(atom, _Anchor):
            raise BadPattern("a repeated anchor")
        repeated = repeat(_term(atom), minimum, maximum)
        if repeated is None:
            raise BadPattern("an empty class")
        return repeated

    def _quantifier(self) -> tuple[int, int] | None:
        if self._take("*"):
            return 0, self._longest
        if self._take("+"):
            return 1, max(1, self._longest)
        if self._take("?"):
            return 0, 1
        if not self._take("{"):
            return None
        end = self._text.find("}", self._at)
        body = self._text[self._at : end] if end >= 0 else ""
        low, comma, high = body.partition(",")
        if (
            not low.isascii()
            or not low.isdigit()
            or (high and not (high.isascii() and high.isdigit()))
            or len(body) > 12
        ):
            raise BadPattern("a { that begins no repetition")
        self._at = end + 1
        minimum = int(low)
        if not comma:
            return minimum, minimum
        return minimum, int(high) if high else max(minimum, self._longest)

    def _class(self) -> Chars:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            first = self._class_item()
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                ranges.append(_span(first, self._class_item()))
            else:
                ranges += first.ranges
        found = chars(*ranges)
        if negated:
            return ANY_CHAR if found is None else Chars(complement(found.ranges))
        if found is None:
            raise BadPattern("an empty class")
        return found

    def _class_item(self) -> Chars:
        char = self._next()
        if char != "\\":
            return Chars(((ord(char), ord(char)),))
        if self._take("b"):
            return Chars(((8, 8),))
        return self._escape()

    def _escape(self) -> Chars:
        char = self._next()
        if char in "dDwWsS":
            return Chars(_named_class(char))
        if char in _CONTROLS and not (char == "0" and self._text[self._at : self._at + 1].isdigit()):
            return Chars(((ord(_CONTROLS[char]),) * 2,))
        if char == "c":
            return Chars(((ord(self._next()) % 32,) * 2,))
        if char == "x":
            return self._code(2)
        if char == "u":
            return self._braced() if self._take("{") else self._code(4)
        if char in _SYNTAX or not (char.isalnum() or char == "_"):
            return Chars(((ord(char), ord(char)),))
        names = {"b": "word boundaries", "B": "word boundaries", "p": "property classes", "P": "property classes"}
        names |= {"k": "back references"} | {str(digit): "back references" for digit in range(10)}
        raise BadPattern(f"{names.get(char, 'unknown escapes')} (\\{char}) are not supported")

    def _code(self, digits: int) -> Chars:
        return self._point(self._text[self._at : self._at + digits], digits)

    def _braced(self) -> Chars:
        end = self._text.find("}", self._at)
        found = self._point(self._text[self._at : max(end, self._at)], max(end - self._at, 1))
        self._at += 1
        return found

    def _point(self, digits: str, length: int) -> Chars:
        try:
            code = int(digits, 16)
        except ValueError:
            code = -1
        if len(digits) != length or not 0 <= code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise BadPattern("an escape that is no character")
        self._at += length
        return Chars(((code, code),))


def _span(first: Chars, last: Chars) -> tuple[int, int]:
    begin, end = first.ranges[0], last.ranges[-1]
    if len(first.ranges) + len(last.ranges) > 2 or begin[0] != begin[1] or end[0] != end[1] or end[0] < begin[0]:
        raise BadPattern("a class range that is out of order")
    return begin[0], end[0]


@functools.cache
def _named_class(name: str) -> Ranges:
    match name:
        case "d":
            return _DIGITS
        case "w":
            return _WORD
        case "s":
            return _SPACE
        case "D":
            return _every(lambda char: not char.isdecimal())
        case "W":
            return _every(lambda char: not (char.isalnum() or char == "_"))
    return _every(lambda char: not (char.isspace() or char == "\ufeff"))


def _every(test: Callable[[str], bool]) -> Ranges:
    """Characters without surrogates that pass a test."""
    found: list[tuple[int, int]] = []
    begin: int | None = None
    for code in range(sys.maxunicode + 2):
        passes = code <= sys.maxunicode and not 0xD800 <= code <= 0xDFFF and test(chr(code))
        if passes and begin is None:
            begin = code
        elif not passes and begin is not None:
            found.append((begin, code - 1))
            begin = None
    return tuple(found)
