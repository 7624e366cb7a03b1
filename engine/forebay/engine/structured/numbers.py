"""Numbers within bounds as terms over their digits. Pure; exact for the decimal writings that it allows.

Bounded decimals have at most 15 significant digits and no exponent. Such decimals and the doubles that they parse to
are in the same order, so a text within the bounds is a double within the bounds.
"""

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final

from forebay.engine.structured.bounds import MAX_DIGITS
from forebay.engine.structured.json_text import DIGIT
from forebay.engine.structured.terms import EMPTY, Chars, Repeat, Term, Text, alt, lexeme, repeat, seq

_LARGEST: Final = 10**MAX_DIGITS - 1
_WIDE: Final = 10**9 - 1
_FRACTION_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a number; None is open. An exclusive bound is not itself allowed."""

    low: Decimal | None = None
    high: Decimal | None = None
    low_exclusive: bool = False
    high_exclusive: bool = False

    def both(self, other: "Limits") -> "Limits":
        """Numbers that both allow."""
        low, low_exclusive = self.low, self.low_exclusive
        if other.low is not None and (low is None or (other.low, other.low_exclusive) > (low, low_exclusive)):
            low, low_exclusive = other.low, other.low_exclusive
        high, high_exclusive = self.high, self.high_exclusive
        if other.high is not None and (
            high is None or (other.high, not other.high_exclusive) < (high, not high_exclusive)
        ):
            high, high_exclusive = other.high, other.high_exclusive
        return Limits(low, high, low_exclusive, high_exclusive)

    @property
    def is_open(self) -> bool:
        """Whether there is no bound at all."""
        return self.low is None and self.high is None

    @property
    def is_empty(self) -> bool:
        """Whether no number can be within them."""
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and (self.low_exclusive or self.high_exclusive))


def integers(limits: Limits) -> Term | None:
    """Integers within the limits and within `MAX_DIGITS` digits, as one lexical unit."""
    low, high = -_LARGEST, _LARGEST
    if limits.low is not None:
        low = max(low, int(limits.low.to_integral_value(ROUND_CEILING)))
        low += limits.low_exclusive and low == limits.low
    if limits.high is not None:
        high = min(high, int(limits.high.to_integral_value(ROUND_FLOOR)))
        high -= limits.high_exclusive and high == limits.high
    positive = _whole(max(low, 0), high)
    negative = seq(Text("-"), _whole(max(-high, 1), -low))
    return lexeme(alt([positive, negative]))


def decimals(limits: Limits) -> Term | None:
    """Decimals within the limits, as one lexical unit."""
    if (limits.low is not None and limits.low > _LARGEST) or (limits.high is not None and limits.high < -_LARGEST):
        return None
    low = Decimal(-_WIDE) if limits.low is None else max(limits.low, Decimal(-_LARGEST))
    high = Decimal(_WIDE) if limits.high is None else min(limits.high, Decimal(_LARGEST))
    if limits.low is None and high < -_WIDE:
        low = Decimal(-_LARGEST)
    if limits.high is None and low > _WIDE:
        high = Decimal(_LARGEST)
    whole_digits = max(len(str(abs(int(low)))), len(str(abs(int(high)))))
    places = max(0, min(_FRACTION_DIGITS, MAX_DIGITS - whole_digits))
    low_exclusive = limits.low is not None and limits.low_exclusive
    high_exclusive = limits.high is not None and limits.high_exclusive
    zero = Decimal(0)
    from_zero = low < zero
    positive = _Span(zero if from_zero else low, high, not from_zero and low_exclusive, high_exclusive, places).term()
    to_zero = high >= zero
    negative = _Span(zero if to_zero else -high, -low, to_zero or high_exclusive, low_exclusive, places).term()
    return lexeme(alt([positive, seq(Text("-"), negative)]))


@dataclass(frozen=True, slots=True)
class _Span:
    """Non-negative decimals from `low` to `high` with at most `places` digits after the point."""

    low: Decimal
    high: Decimal
    low_exclusive: bool
    high_exclusive: bool
    places: int

    def term(self) -> Term | None:
        step = Decimal(1).scaleb(-self.places)
        low, high = self.low.quantize(step, ROUND_CEILING), self.high.quantize(step, ROUND_FLOOR)
        low_exclusive = self.low_exclusive and low == self.low
        high_exclusive = self.high_exclusive and high == self.high
        if high < 0 or low > high or (low == high and (low_exclusive or high_exclusive)):
            return None
        low_whole, high_whole = int(low), int(high)
        low_part, high_part = _fraction(low, self.places), _fraction(high, self.places)
        if low_whole == high_whole:
            within = self._between(low_part, high_part, low_exclusive=low_exclusive, high_exclusive=high_exclusive)
            return seq(Text(str(low_whole)), within)
        top = "9" * self.places
        return alt(
            [
                seq(Text(str(low_whole)), self._between(low_part, top, low_exclusive=low_exclusive)),
                seq(_whole(low_whole + 1, high_whole - 1), self._any()),
                seq(Text(str(high_whole)), self._between("0" * self.places, high_part, high_exclusive=high_exclusive)),
            ]
        )

    def _any(self) -> Term | None:
        fraction = seq(Text("."), repeat(DIGIT, 1, self.places)) if self.places else None
        return repeat(fraction, 0, 1)

    def _between(
        self, low: str, high: str, *, low_exclusive: bool = False, high_exclusive: bool = False
    ) -> Term | None:
        """Fractions (with their point) from `low` to `high`, given as `places` digits each; empty means zero."""
        first, last = int(low or "0") + low_exclusive, int(high or "0") - high_exclusive
        if first > last:
            return None
        bare = EMPTY if first == 0 else None
        if not self.places:
            return bare
        digits = _fixed(str(first).rjust(self.places, "0"), str(last).rjust(self.places, "0"))
        return alt([bare, seq(Text("."), digits)])


def _fraction(value: Decimal, places: int) -> str:
    return str(int((value - int(value)).scaleb(places))).rjust(places, "0") if places else ""


def _digit(first: int, last: int) -> Term | None:
    return Chars(((0x30 + first, 0x30 + last),)) if first <= last else None


def _fixed(low: str, high: str) -> Term | None:
    """Fractions between two of equal length: digit texts no longer than they are, read as if padded with zeros."""
    if not low:
        return EMPTY
    rest = len(low) - 1
    a, b = int(low[0]), int(high[0])
    free = repeat(DIGIT, 0, rest)
    zeros, nines = "0" * rest, "9" * rest
    if a == b:
        return seq(Text(low[0]), _tail(low[1:], high[1:]))
    middle = seq(_digit(a + 1, b - 1), free)
    return alt([seq(Text(low[0]), _tail(low[1:], nines)), middle, seq(Text(high[0]), _tail(zeros, high[1:]))])


def _tail(low: str, high: str) -> Term | None:
    """Like `_fixed`, and nothing at all when all zeros are within."""
    bare = EMPTY if not low.strip("0") else None
    if not low:
        return EMPTY
    return alt([bare, _fixed(low, high)])


def _whole(low: int, high: int) -> Term | None:
    """Non-negative integers from `low` to `high`, without leading zeros."""
    if low > high:
        return None
    parts: list[Term | None] = []
    for length in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 10 ** (length - 1) if length > 1 else 0)
        last = min(high, 10**length - 1)
        parts.append(_padded(str(first), str(last)))
    return alt(parts)


def _padded(low: str, high: str) -> Term | None:
    """Numbers between two of equal length, with exactly that many digits."""
    if not low:
        return EMPTY
    rest = len(low) - 1
    if low.strip("0") == "" and high.strip("9") == "":
        return Repeat(DIGIT, len(low), len(low))
    if low[0] == high[0]:
        return seq(Text(low[0]), _padded(low[1:], high[1:]))
    below, above = low[1:].strip("0") == "", high[1:].strip("9") == ""
    first, last = int(low[0]) + (not below), int(high[0]) - (not above)
    return alt(
        [
            None if below else seq(Text(low[0]), _padded(low[1:], "9" * rest)),
            seq(_digit(first, last), repeat(DIGIT, rest, rest)),
            None if above else seq(Text(high[0]), _padded("0" * rest, high[1:])),
        ]
    )
