"""Writes terms as a Lark grammar for llguidance: lexemes become terminals, all else rules. Pure.

Equal lexemes share one terminal. Only terminals may be intersected and subtracted, so such terms get their own.
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
    is_composed,
)


class LarkWriter:
    """Collects the terminals of one grammar."""

    def __init__(self) -> None:
        self._terminals: dict[str, str] = {}
        self._of_term: dict[Term, str] = {}

    def rule(self, name: str, body: Term) -> str:
        """One rule as a line."""
        return f"{name}: {self.body(body)}"

    def terminals(self) -> list[str]:
        """The terminals that the rules written so far use, as lines."""
        return [f"{name}: {text}" for text, name in self._terminals.items()]

    def body(self, term: Term) -> str:
        """The right side of a rule."""
        match term:
            case Rule(name):
                return name
            case Lexeme(inner):
                return self.terminal(inner)
            case Seq(items):
                return " ".join(map(self._inner, items))
            case Alt(items):
                return " | ".join(self.body(item) or '""' for item in items)
            case Repeat(item, 0, 1):
                return f"{self._inner(item)}?"
            case Repeat(item, minimum, maximum):
                return f"{self._inner(item)}{{{minimum},{maximum}}}"
            case Text(""):
                return '""'
            case _:
                return self.terminal(term)

    def _inner(self, term: Term) -> str:
        text = self.body(term)
        return text if isinstance(term, Rule | Lexeme) else f"({text})"

    def terminal(self, term: Term) -> str:
        """The name of the terminal for a regular term."""
        name = self._of_term.get(term)
        if name is None:
            text = self._expression(term)
            name = self._terminals.setdefault(text, f"T{len(self._terminals)}")
            self._of_term[term] = name
        return name

    def _expression(self, term: Term) -> str:
        if not is_composed(term):
            return f"/{regex(term)}/"
        match term:
            case Both(left, right):
                return f"{self.terminal(left)} & {self.terminal(right)}"
            case Without(left, right):
                return f"{self.terminal(left)} & ~{self.terminal(right)}"
            case Seq(items):
                return " ".join(self._part(run) for run in _runs(items))
            case Alt(items):
                return " | ".join(self.terminal(item) for item in items)
            case Repeat(item, minimum, maximum):
                return f"{self.terminal(item)}{{{minimum},{maximum}}}"
            case _:
                raise TypeError("a rule inside a lexeme")

    def _part(self, run: tuple[Term, ...]) -> str:
        return self.terminal(run[0] if len(run) == 1 else Seq(run))


def _runs(items: tuple[Term, ...]) -> list[tuple[Term, ...]]:
    """Plain neighbours together, composed items alone."""
    runs: list[tuple[Term, ...]] = []
    for item in items:
        if runs and not is_composed(item) and not is_composed(runs[-1][-1]):
            runs[-1] = (*runs[-1], item)
        else:
            runs.append((item,))
    return runs


def regex(term: Term) -> str:
    """A plain regular term in Rust's syntax, with every symbol escaped by its code."""
    match term:
        case Chars(ranges):
            return _class(ranges)
        case Text(text):
            return "".join(map(_char, text))
        case Seq(items):
            return "".join(_grouped(item) if isinstance(item, Alt) else regex(item) for item in items)
        case Alt(items):
            return "|".join(map(regex, items))
        case Repeat(item, 0, 1):
            return f"{_grouped(item)}?"
        case Repeat(item, minimum, maximum):
            return f"{_grouped(item)}{{{minimum},{maximum}}}"
        case Lexeme(inner):
            return regex(inner)
        case Free():
            return "(?s:.)*"
        case _:
            raise TypeError(f"{type(term).__name__} is not plain")


def _grouped(term: Term) -> str:
    text = regex(term)
    return text if isinstance(term, Chars) else f"({text})"


def _char(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


def _class(ranges: Ranges) -> str:
    parts = [
        _char(chr(first)) if first == last else f"{_char(chr(first))}-{_char(chr(last))}" for first, last in ranges
    ]
    return f"[{''.join(parts)}]"


def lark_grammar(rules: Mapping[str, Term], start: Term) -> str:
    """A whole grammar."""
    writer = LarkWriter()
    lines = [writer.rule("start", start), *(writer.rule(name, body) for name, body in rules.items())]
    return "\n".join([*lines, *writer.terminals(), ""])
