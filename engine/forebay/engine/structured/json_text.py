"""JSON's lexical units as terms. Pure.

Strings are written in one canonical way: each character stands for itself, except the quote, the backslash and five
control characters, which have their short escapes; other control characters cannot occur. So one character of a
string is one unit of its text, lengths are exact, and a set of strings maps to a set of texts one to one.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from forebay.engine.structured.bounds import MAX_DIGITS, MAX_FRACTION_DIGITS
from forebay.engine.structured.terms import (
    ANY_CHAR,
    EMPTY,
    Alt,
    Both,
    Chars,
    Lexeme,
    Ranges,
    Repeat,
    Seq,
    Term,
    Text,
    Without,
    alt,
    both,
    chars,
    complement,
    lexeme,
    overlap,
    repeat,
    seq,
    without,
)

_ESCAPES: Final = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_PLAIN: Final = complement([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])
_QUOTE: Final = Text('"')
DIGIT: Final = Chars(((0x30, 0x39),))
NONZERO: Final = Chars(((0x31, 0x39),))
_BLANK: Final = Chars(((0x09, 0x0A), (0x0D, 0x0D), (0x20, 0x20)))


def encoded(term: Term) -> Term | None:
    """The JSON text, without quotes, of the strings of a regular term; None when none can be written."""
    match term:
        case Chars(ranges):
            return _encoded_chars(ranges)
        case Text(text):
            return _encoded_text(text)
        case Seq(items):
            return seq(*map(encoded, items))
        case Alt(items):
            return alt(map(encoded, items))
        case Repeat(item, minimum, maximum):
            return repeat(encoded(item), minimum, maximum)
        case Both(left, right):
            return both(encoded(left), encoded(right))
        case Without(left, right):
            return without(encoded(left), encoded(right))
        case _:
            raise TypeError("only regular terms can be strings")


def _encoded_chars(ranges: Ranges) -> Term | None:
    escaped = [Text("\\" + letter) for char, letter in _ESCAPES.items() if overlap(ranges, ((ord(char), ord(char)),))]
    return alt([chars(*overlap(ranges, _PLAIN)), *escaped])


def _encoded_text(text: str) -> Term | None:
    is_writable = all(char >= " " or char in _ESCAPES for char in text)
    return Text(json_string(text)[1:-1]) if is_writable else None


def json_string(text: str) -> str:
    """A string literal in the canonical writing."""
    return json.dumps(text, ensure_ascii=False)


def plain_literal(value: Any) -> Text:
    """One JSON value, compact, as text."""
    return Text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def literal(value: Any) -> Term:
    """One JSON value, compact, as one lexical unit."""
    return Lexeme(plain_literal(value))


def string(minimum: int, maximum: int) -> Term | None:
    """Any string of so many characters."""
    return quoted(repeat(ANY_CHAR, minimum, maximum))


def quoted(term: Term | None) -> Term | None:
    """The JSON strings whose values a regular term allows, as one lexical unit."""
    return None if term is None else lexeme(seq(_QUOTE, encoded(term), _QUOTE))


def integer() -> Term:
    """Any integer of at most `MAX_DIGITS` digits."""
    return Lexeme(_signed(EMPTY))


def number() -> Term:
    """Any number with bounded digits and exponent."""
    fraction = Seq((Text("."), Repeat(DIGIT, 1, MAX_FRACTION_DIGITS)))
    exponent = Seq(
        (Chars(((0x45, 0x45), (0x65, 0x65))), Repeat(Chars(((0x2B, 0x2B), (0x2D, 0x2D))), 0, 1), Repeat(DIGIT, 1, 2))
    )
    return Lexeme(_signed(Seq((Repeat(fraction, 0, 1), Repeat(exponent, 0, 1)))))


def _signed(rest: Term) -> Term:
    whole = Alt((Text("0"), Seq((NONZERO, Repeat(DIGIT, 0, MAX_DIGITS - 1)))))
    return Seq((Repeat(Text("-"), 0, 1), whole, rest))


class Marks:
    """Punctuation with bounded whitespace: each run is part of exactly one mark, so runs never join."""

    def __init__(self, whitespace: int) -> None:
        blank = repeat(_BLANK, 0, whitespace)
        self.blank = EMPTY if blank is None else blank
        self.comma = self._mark(self.blank, Text(","), self.blank)
        self.open_object = self._mark(Text("{"), self.blank)
        self.close_object = self._mark(self.blank, Text("}"))
        self.empty_object = self._mark(Text("{"), self.blank, Text("}"))
        self.open_array = self._mark(Text("["), self.blank)
        self.close_array = self._mark(self.blank, Text("]"))
        self.empty_array = self._mark(Text("["), self.blank, Text("]"))

    def key(self, name: Term) -> Term | None:
        """A key out of a regular term's strings, and its colon."""
        return lexeme(seq(_QUOTE, encoded(name), _QUOTE, self.blank, Text(":"), self.blank))

    @staticmethod
    def _mark(*parts: Term) -> Term:
        return Lexeme(Seq(parts))


def keys_without(names: Sequence[str], longest: int) -> Term | None:
    """Strings of at most `longest` characters that are none of `names`, as a term without complement."""
    return _other(sorted(set(names)), 0, longest)


def _other(names: Sequence[str], depth: int, left: int) -> Term | None:
    """Endings of strings that share their first `depth` characters with every one of `names`."""
    if not names:
        return repeat(ANY_CHAR, 0, left)
    ends = EMPTY if all(len(name) > depth for name in names) else None
    if left == 0:
        return ends
    children: dict[str, list[str]] = {}
    for name in names:
        if len(name) > depth:
            children.setdefault(name[depth], []).append(name)
    taken = [(ord(char), ord(char)) for char in children]
    others = seq(chars(*complement(taken)), repeat(ANY_CHAR, 0, left - 1))
    inner = [seq(Text(char), _other(group, depth + 1, left - 1)) for char, group in sorted(children.items())]
    return alt([ends, others, *inner])
