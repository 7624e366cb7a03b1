"""Proof that the branches of a `oneOf` cannot both hold, so that one of them may be generated. Pure.

`excludes(made, other)` says that no value generated from `made` satisfies `other`. Generation is narrower than the
schema: it writes undeclared members only where the schema asks for them, which makes more branches provably apart.
Sound and incomplete: where no proof is found the schema is refused.
"""

from collections.abc import Callable
from typing import Final

from forebay.engine.structured.schema_parts import Conjunction, Count, Flat
from forebay.engine.structured.schema_values import Judge, matches

MAX_DEPTH: Final = 8
_NUMBERS: Final = frozenset({"number", "integer"})


class Separation:
    """Compares flattened subschemas of one document; `flatten` joins a conjunction, None when nothing satisfies it."""

    def __init__(self, flatten: Callable[[Conjunction], Flat | None], judge: Judge) -> None:
        self._flatten = flatten
        self._judge = judge

    def excludes(self, made: Flat, other: Flat, depth: int = 0) -> bool:
        """Whether nothing generated from `made` satisfies `other`."""
        if depth > MAX_DEPTH:
            return False
        listed = made.enum if made.enum is not None else other.enum
        if listed is not None:
            both = (*made.conjuncts, *other.conjuncts)
            return not any(self._judge.allows(both, value) for value in listed)
        return all(self._apart(kind, made, other, depth) for kind in made.kinds)

    def _apart(self, kind: str, made: Flat, other: Flat, depth: int) -> bool:
        """The same for values of one type."""
        if other.types is not None and not ({kind} | (_NUMBERS if kind in _NUMBERS else set())) & other.types:
            return True
        match kind:
            case "string":
                return _disjoint(made.length, other.length)
            case "number" | "integer":
                return made.limits.both(other.limits).is_empty
            case "array":
                return _disjoint(made.size, other.size)
            case "object":
                return self._objects_apart(made, other, depth)
        return False

    def _objects_apart(self, made: Flat, other: Flat, depth: int) -> bool:
        missing = set(other.required) - set(made.declared)
        if missing and not made.writes_others and not made.choices:
            return True
        both_have = dict.fromkeys((*made.required, *other.required))
        return any(self._members_apart(name, made, other, depth) for name in both_have)

    def _members_apart(self, name: str, made: Flat, other: Flat, depth: int) -> bool:
        """Whether the member of one name, which a common value must have, cannot satisfy both."""
        mine = self._flatten(made.member(name, matches))
        theirs = self._flatten(other.member(name, matches))
        return mine is None or theirs is None or self.excludes(mine, theirs, depth + 1)


def _disjoint(left: Count, right: Count) -> bool:
    joined = left.both(right)
    return joined.high is not None and joined.low > joined.high
