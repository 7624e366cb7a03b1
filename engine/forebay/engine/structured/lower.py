"""Lowers a checked JSON schema to terms: every keyword becomes part of the grammar, exactly, within the bounds.

Each text of the result is a JSON document that the schema allows; the bounds and a few stated choices (declared order
of members, no undeclared members unless the schema speaks of them) leave documents out, never in. What cannot be
lowered exactly is an `InvalidRequest` that names the place. Runs in the compile process; members are in
`lower_objects.py`.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from forebay.contract.errors import InvalidRequest
from forebay.engine.structured import json_text
from forebay.engine.structured.bounds import Bounds
from forebay.engine.structured.ecma import BadPattern, pattern_term
from forebay.engine.structured.formats import FORMATS
from forebay.engine.structured.json_text import Marks
from forebay.engine.structured.lower_objects import ObjectLowering
from forebay.engine.structured.numbers import decimals, integers
from forebay.engine.structured.schema_check import MAX_LENGTH, SUPPORTED, TYPES, SchemaCheck
from forebay.engine.structured.schema_exclusive import Separation
from forebay.engine.structured.schema_parts import (
    Choice,
    Conjunction,
    Flat,
    Located,
    References,
    Scope,
    own_keywords,
)
from forebay.engine.structured.schema_values import Judge
from forebay.engine.structured.terms import (
    ANY_CHAR,
    EMPTY,
    Alt,
    Lexeme,
    Rule,
    Term,
    Text,
    alt,
    both,
    is_composed,
    lengths,
    repeat,
    seq,
)

MAX_PLACES: Final = 20_000
MAX_RULES: Final = 8_000
MAX_INLINE: Final = 32
MAX_BRANCHES: Final = 256
_NO_SCOPE: Final[Scope] = {}


class Lowering:
    """One grammar being made out of one or more schemas. `rules` are the named rules so far."""

    def __init__(self, bounds: Bounds, is_empty: Callable[[Term], bool]) -> None:
        """`is_empty` decides whether a composed lexeme has no text at all."""
        self.bounds = bounds
        self._is_empty = is_empty
        self._empty: dict[Term, bool] = {}
        self.marks = Marks(bounds.whitespace)
        self.rules: dict[str, Term] = {}
        self._places = 0

    def schema(self, root: Any, param: str) -> Term:
        """The term of a whole schema; `InvalidRequest` on field `param` when it is not supported or not satisfiable."""
        check = SchemaCheck(param)
        check.check(root)
        references = References(root, param)
        for ref, place in check.refs:
            references.target(ref, place)
        references.refuse_loops()
        term = SchemaLowering(self, references, param).value((Located(root, "#"),), _NO_SCOPE)
        if term is None:
            raise InvalidRequest(f"{param}: no value satisfies this schema within the bounds", param=param)
        return term

    def any_value(self, depth: int) -> Term:
        """Any JSON value in which arrays and objects are nested at most `depth` deep."""
        name = f"any{depth}"
        if name not in self.rules:
            longest = self.bounds.string
            options = [json_text.string(0, longest), json_text.number(), *map(json_text.literal, (True, False, None))]
            if depth > 0:
                options += [self._any_array(depth - 1), self.any_object(depth - 1)]
            self.rule(name, alt(options))
        return Rule(name)

    def _any_array(self, depth: int) -> Term | None:
        item = self.any_value(depth)
        return self.array([], item, 0, self.bounds.items)

    def any_object(self, depth: int) -> Term | None:
        """Any object whose members' values are nested at most `depth` deep."""
        member = seq(self.marks.key(repeat(ANY_CHAR, 0, self.bounds.key) or EMPTY), self.any_value(depth))
        more = repeat(seq(self.marks.comma, member), 0, self.bounds.items - 1)
        full = seq(self.marks.open_object, member, more, self.marks.close_object)
        return alt([self.marks.empty_object, full])

    def array(self, prefix: Sequence[Term | None], rest: Term | None, low: int, high: int) -> Term | None:
        """Arrays of `low` to `high` items: first those of `prefix`, then `rest`; None items cannot be had."""
        marks = self.marks
        empty = marks.empty_array if low == 0 else None
        if low > high or high == 0:
            return empty if low <= high else None
        begin = max(len(prefix), 1)
        tail = repeat(seq(marks.comma, rest), max(low - begin, 0), high - begin) if high > begin else EMPTY
        for index in range(min(begin, high) - 1, 0, -1):
            tail = seq(marks.comma, prefix[index], tail)
            if index >= low:
                tail = repeat(tail, 0, 1)
        first = prefix[0] if prefix else rest
        return alt([empty, seq(marks.open_array, first, tail, marks.close_array)])

    def rule(self, name: str, body: Term | None) -> Term | None:
        """Name a term; None stays None."""
        if body is None:
            return None
        if len(self.rules) >= MAX_RULES:
            raise InvalidRequest(f"the schema needs more than {MAX_RULES} grammar rules")
        self.rules[name] = body
        return Rule(name)

    def fresh(self, body: Term | None) -> Term | None:
        """The term under a name of its own, so that it is written once."""
        return body if body is None or isinstance(body, Rule | Lexeme) else self.rule(f"r{len(self.rules)}", body)

    def inhabited(self, strings: Term | None) -> Term | None:
        """The regular term, or None when none of its strings can be written."""
        written = json_text.quoted(strings)
        if written is None or not is_composed(written):
            return None if written is None else strings
        if written not in self._empty:
            self.count_place()
            self._empty[written] = self._is_empty(written)
        return None if self._empty[written] else strings

    def count_place(self) -> None:
        """Bounds the work on schemas that multiply when they are joined."""
        self._places += 1
        if self._places > MAX_PLACES:
            raise InvalidRequest(f"the schema grows to more than {MAX_PLACES} places when it is expanded")


class SchemaLowering:
    """The lowering of one document's subschemas into the rules of `whole`."""

    def __init__(self, whole: Lowering, references: References, param: str) -> None:
        self.whole = whole
        self.judge = Judge(references)
        self._references = references
        self._param = param
        self._objects = ObjectLowering(self)
        self._separation = Separation(lambda conjunction: self._joined(conjunction, _NO_SCOPE), self.judge)
        self._rules: dict[tuple[str, int | None], Term | None] = {}

    def problem(self, pointer: str, text: str) -> InvalidRequest:
        """An error about one place of the schema."""
        return InvalidRequest(f"{self._param}: at {pointer[:400]}: {text}", param=self._param)

    def value(self, conjunction: Conjunction, scope: Scope) -> Term | None:
        """Values that all subschemas allow; None when there is none."""
        self.whole.count_place()
        conjunction = tuple(at for at in conjunction if not _is_open(at.schema))
        if not conjunction:
            return self.whole.any_value(self.whole.bounds.any_depth)
        if len(conjunction) == 1 and _is_reference(conjunction[0].schema):
            return self._reference(conjunction[0], scope)
        if len(conjunction) == 1 and (only := _only_choice(conjunction[0])) is not None and not only.exclusive:
            return alt(self.value((branch,), scope) for branch in only.branches)
        found = self.flatten(conjunction, scope)
        return None if found is None else self._flat(*found)

    def _reference(self, at: Located, scope: Scope) -> Term | None:
        """A reference as a rule, one for each target and number of entries that are left for its cycle."""
        ref = at.schema["$ref"]
        inner = self._references.enter(ref, scope, self.whole.bounds.recursion)
        if inner is None:
            return None
        key = (ref, next(iter(inner.values()), None))
        if key not in self._rules:
            name = f"ref{len(self._rules)}"
            self._rules[key] = Rule(name)
            self._rules[key] = self.whole.rule(name, self.value((self._references.target(ref, at.pointer),), inner))
        return self._rules[key]

    def flatten(self, conjunction: Conjunction, scope: Scope, depth: int = 0) -> tuple[Flat, Scope] | None:
        """The keywords of all subschemas joined, references and `allOf` taken in; None when a cycle is used up."""
        if depth > MAX_INLINE:
            raise self.problem(conjunction[0].pointer, f"$ref and allOf are nested deeper than {MAX_INLINE}")
        joined = Flat()
        for at in conjunction:
            self.whole.count_place()
            joined = joined.both(own_keywords(at))
            parts = self._parts(at, scope)
            if parts is None:
                return None
            for inner, inner_scope in parts:
                found = self.flatten((inner,), inner_scope, depth + 1)
                if found is None:
                    return None
                joined, scope = joined.both(found[0]), {**scope, **found[1]}
        return joined, scope

    def _parts(self, at: Located, scope: Scope) -> list[tuple[Located, Scope]] | None:
        """What a subschema takes in; None when its reference may not be entered again."""
        schema = at.schema
        if not isinstance(schema, dict):
            return []
        parts = [(at.sub("allOf", index), scope) for index in range(len(schema.get("allOf", ())))]
        if "$ref" in schema:
            inner = self._references.enter(schema["$ref"], scope, self.whole.bounds.recursion)
            if inner is None:
                return None
            parts.append((self._references.target(schema["$ref"], at.pointer), inner))
        return parts

    def _joined(self, conjunction: Conjunction, scope: Scope) -> Flat | None:
        found = self.flatten(conjunction, scope)
        return None if found is None or found[0].types == frozenset() else found[0]

    def _flat(self, flat: Flat, scope: Scope) -> Term | None:
        if flat.choices:
            return self._choices(flat, scope)
        if flat.enum is not None:
            return self._values(flat)
        return alt(self._of_kind(kind, flat, scope) for kind in self._kinds(flat))

    def _choices(self, flat: Flat, scope: Scope) -> Term | None:
        """The first choice taken apart, each branch joined with everything else that applies."""
        choice, others = flat.choices[0], flat.choices[1:]
        base = replace(flat, choices=())
        branches: list[tuple[Flat, Scope]] = []
        for branch in choice.branches:
            found = self.flatten((branch,), scope)
            if found is not None:
                joined = base.both(found[0])
                branches.append((replace(joined, choices=joined.choices + others), {**scope, **found[1]}))
        if choice.exclusive:
            # Without the schemas around it: the one that has this `oneOf` would itself call a value of both bad.
            self._require_exclusive(choice, replace(flat, choices=others, conjuncts=()), scope)
        if len(branches) > MAX_BRANCHES:
            raise self.problem(choice.pointer, f"there are more than {MAX_BRANCHES} alternatives")
        return alt(self._flat(*branch) for branch in branches)

    def _require_exclusive(self, choice: Choice, base: Flat, scope: Scope) -> None:
        """Refuse a `oneOf` whose branches could hold together for a value that `base` allows."""
        flats = [self._joined((branch,), scope) for branch in choice.branches]
        for place, made in enumerate(flats):
            for other_place, other in enumerate(flats):
                if place == other_place or made is None or other is None:
                    continue
                if not self._separation.excludes(base.both(made), other):
                    text = (
                        f"oneOf branches {place} and {other_place} may both hold, which cannot be excluded; use anyOf"
                    )
                    raise self.problem(choice.pointer, text)

    def _values(self, flat: Flat) -> Term | None:
        """The values of an `enum` that everything else allows."""
        allowed = [value for value in flat.enum or () if self.judge.allows(flat.conjuncts, value)]
        texts = alt(json_text.plain_literal(value) for value in allowed)
        return None if texts is None else Lexeme(texts)

    @staticmethod
    def _kinds(flat: Flat) -> list[str]:
        kinds = flat.kinds - {"integer"} if "number" in flat.kinds else flat.kinds
        return sorted(kinds, key=TYPES.index)

    def _of_kind(self, kind: str, flat: Flat, scope: Scope) -> Term | None:
        self.whole.count_place()
        match kind:
            case "string":
                return json_text.quoted(self.string(flat))
            case "number":
                return json_text.number() if flat.limits.is_open else decimals(flat.limits)
            case "integer":
                return json_text.integer() if flat.limits.is_open else integers(flat.limits)
            case "boolean":
                return Lexeme(Alt((Text("true"), Text("false"))))
            case "null":
                return json_text.literal(None)
            case "array":
                return self.whole.fresh(self._array(flat, scope))
            case _:
                return self.whole.fresh(self._objects.term(flat, scope))

    def string(self, flat: Flat) -> Term | None:
        """The values (not their JSON text) of the strings that patterns, formats and lengths allow."""
        low = flat.length.low
        stated = flat.length.high
        high = max(low, self.whole.bounds.string) if stated is None else min(stated, MAX_LENGTH)
        if low > high:
            return None
        terms = [self.pattern_term_at(at.schema, at.pointer, high) for at in flat.patterns]
        terms += [pattern_term(FORMATS[name], high) for name in flat.formats]
        within = repeat(ANY_CHAR, low, high)
        if not terms:
            return within
        found = functools.reduce(both, terms)
        if found is None:
            return None
        shortest, longest = lengths(found)
        is_within = shortest >= low and (stated is None or longest <= high)
        return self.whole.inhabited(found if is_within else both(found, within))

    def pattern_term_at(self, pattern: str, pointer: str, longest: int) -> Term | None:
        """Strings in which a pattern is found; `InvalidRequest` when it is not supported."""
        try:
            return pattern_term(pattern, longest)
        except BadPattern as error:
            raise self.problem(pointer, f"this pattern is not supported: {error}") from error

    def _array(self, flat: Flat, scope: Scope) -> Term | None:
        longest = max((len(part.prefix) for part in flat.arrays), default=0)
        says_rest = any(part.rest is not None for part in flat.arrays)
        low, high = flat.size.low, flat.size.high
        most = max(low, self.whole.bounds.items, longest)
        high = most if high is None else min(high, most)
        if longest and not says_rest and low <= longest:
            high = min(high, longest)
        prefix = [self.value(flat.item(index), scope) for index in range(min(longest, high))]
        rest = self.value(flat.item(longest), scope) if high > longest else None
        return self.whole.array(prefix, rest, low, high)


_PLACES: Final = frozenset({"$defs", "definitions"})
"""Keywords that hold subschemas and enforce nothing themselves."""


def _enforced(schema: Any) -> set[str]:
    """The keywords of a subschema that say something about values."""
    return set(schema) & _ENFORCED


_ENFORCED: Final = frozenset(SUPPORTED) - _PLACES


def _is_open(schema: Any) -> bool:
    """Whether a subschema allows every value."""
    return schema is True or (isinstance(schema, dict) and not _enforced(schema))


def _is_reference(schema: Any) -> bool:
    """Whether a subschema is a reference and nothing else that is enforced."""
    return isinstance(schema, dict) and _enforced(schema) == {"$ref"}


def _only_choice(at: Located) -> Choice | None:
    """The one choice of a subschema that enforces nothing else."""
    if not isinstance(at.schema, dict) or _enforced(at.schema) - {"anyOf", "oneOf"}:
        return None
    choices = own_keywords(at).choices
    return choices[0] if len(choices) == 1 else None
