"""Writes terms as EBNF for xgrammar, character by character. Pure.

xgrammar has no intersection and no complement of character sets, so a grammar that needs one is refused by name; the
other library takes it. Long strings are written without escapes. Equal lexemes share one rule.
"""

from collections.abc import Mapping

from forebay.engine.structured.terms import (
    Alt,
    Both,
    Chars,
    Free,
    Lexeme,
    Ranges,
    Repeat,
    Rule,
    Seq,
    Term,
    Text,
    Without,
    complement,
)


class NeedsIntersection(ValueError):
    """The grammar cannot be written in this language."""


class EbnfWriter:
    """Collects the rules of one grammar."""

    def __init__(self) -> None:
        self.lexemes: dict[Term, str] = {}
        self.lines: list[str] = []

    def body(self, term: Term) -> str:
        """The right side of a rule."""
        match term:
            case Rule(name):
                return name
            case Lexeme(inner):
                return self._lexeme(inner)
            case Text(text):
                return '"' + "".join(map(_in_quotes, text)) + '"'
            case Chars(ranges):
                return _class(ranges)
            case Seq(items):
                return " ".join(map(self._inner, items))
            case Alt(items):
                return " | ".join(map(self._inner, items))
            case Repeat(item, minimum, maximum):
                return f"{self._inner(_single(item))}{{{minimum},{maximum}}}"
            case Free() | Both() | Without():
                raise NeedsIntersection("it combines patterns, lengths or free text, which only llguidance enforces")

    def _inner(self, term: Term) -> str:
        text = self.body(term)
        return text if isinstance(term, Rule | Lexeme | Text | Chars) else f"({text})"

    def _lexeme(self, term: Term) -> str:
        name = self.lexemes.get(term)
        if name is None:
            name = self.lexemes[term] = f"t{len(self.lexemes)}"
            self.lines.append(f"{name} ::= {self.body(term)}")
        return name


def _single(item: Term) -> Term:
    """The single characters of a repeated unit: xgrammar takes seconds for a mask when units differ in length."""
    if isinstance(item, Alt):
        return next((option for option in item.items if isinstance(option, Chars)), item)
    return item


def _class(ranges: Ranges) -> str:
    """A character class, negated when it reaches to the last character: only such classes repeat at low cost."""
    is_open = ranges[-1][1] == 0x10FFFF
    spans = [span for span in complement(ranges) if span != (0xD800, 0xDFFF)] if is_open else ranges
    return f"[{'^' if is_open else ''}{''.join(_span(first, last) for first, last in spans)}]"


def _code(point: int) -> str:
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"


def _in_quotes(char: str) -> str:
    return char if char.isascii() and char.isalnum() else _code(ord(char))


def _span(first: int, last: int) -> str:
    return _code(first) if first == last else f"{_code(first)}-{_code(last)}"


def ebnf_grammar(rules: Mapping[str, Term], start: Term) -> str:
    """A whole grammar; raises `NeedsIntersection`."""
    writer = EbnfWriter()
    lines = [f"root ::= {writer.body(start)}", *(f"{name} ::= {writer.body(body)}" for name, body in rules.items())]
    return "\n".join([*lines, *writer.lines, ""])
