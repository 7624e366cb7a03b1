"""Lowers the members of an object: declared ones in their order, then those that patterns or the rest allow. Pure.

Which members are there is a walk over (next declared member, members so far); each state is one rule, so optional
members cost two rules each and never a product. Two undeclared members may have the same key, of which a parser keeps
the last; so at most one of them is ever counted on. Used by `lower.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.engine.structured.json_text import keys_without
from forebay.engine.structured.schema_parts import Conjunction, Flat, Located, Scope
from forebay.engine.structured.schema_values import matches
from forebay.engine.structured.terms import (
    EMPTY,
    Term,
    Text,
    alt,
    both,
    repeat,
    seq,
    without,
)

if TYPE_CHECKING:
    from forebay.engine.structured.lower import SchemaLowering


@dataclass(frozen=True, slots=True)
class _Members:
    """One object's members: `slots` are (term, required) in order, `other` any one more, `low` and `high` bound all."""

    slots: Sequence[tuple[Term, bool]]
    other: Term | None
    low: int
    high: int | None
    most_others: int

    @property
    def required(self) -> int:
        return sum(is_required for _, is_required in self.slots)

    @property
    def counted(self) -> int:
        """Up to how many members the walk must count apart; 1 tells only whether there is one before."""
        low = self.low if self.low > self.required else 1
        high = self.high + 1 if self.high is not None and self.high < len(self.slots) else 1
        return max(1, low, high)

    def is_full(self, count: int) -> bool:
        """Whether no member may follow `count` others, when all are counted."""
        return self.high is not None and self.counted > self.high and count >= self.high


class ObjectLowering:
    """Lowers objects for one `SchemaLowering`."""

    def __init__(self, owner: "SchemaLowering") -> None:
        self._owner = owner

    def term(self, flat: Flat, scope: Scope) -> Term | None:
        """Objects that the joined keywords allow; None when there is none."""
        members = self._members(flat, scope)
        if members is None or (members.high is not None and members.high < max(members.required, members.low)):
            return None
        marks = self._owner.whole.marks
        empty = marks.empty_object if members.required == 0 and members.low == 0 else None
        if members.high == 0:
            return empty
        return alt([empty, seq(marks.open_object, self._walk(members), marks.close_object)])

    def _members(self, flat: Flat, scope: Scope) -> _Members | None:
        owner, marks = self._owner, self._owner.whole.marks
        slots: list[tuple[Term, bool]] = []
        for name in flat.declared:
            is_allowed = owner.judge.allows(flat.names, name)
            value = owner.value(flat.member(name, matches), scope) if is_allowed else None
            member = seq(marks.key(Text(name)), value)
            is_required = name in flat.required
            if member is None and is_required:
                return None
            if member is not None:
                slots.append((member, is_required))
        other = self._other_member(flat, scope) if flat.writes_others else None
        low = flat.members.low
        if low > len(slots) and other is None:
            return None
        if low > len(slots) + 1:
            text = "minProperties asks for more members than can be told apart; declare them in properties"
            raise owner.problem(flat.conjuncts[0].pointer, text)
        return _Members(slots, other, low, flat.members.high, owner.whole.bounds.items)

    def _walk(self, members: _Members) -> Term | None:
        """What stands between the braces when there is at least one member."""
        cap = members.counted
        after = [self._ending(members, count) for count in range(cap + 1)]
        for place in range(len(members.slots) - 1, -1, -1):
            after = [self._place(members, place, count, after) for count in range(min(place, cap) + 1)]
        return after[0]

    def _place(self, members: _Members, place: int, count: int, after: Sequence[Term | None]) -> Term | None:
        """One declared member, taken or left out, and what follows, when `count` members came before."""
        whole = self._owner.whole
        whole.count_place()
        member, is_required = members.slots[place]
        following = None if members.is_full(count) else after[min(count + 1, len(after) - 1)]
        with_it = seq(whole.marks.comma if count else EMPTY, member, following)
        return with_it if is_required else whole.fresh(alt([with_it, after[count]]))

    def _ending(self, members: _Members, count: int) -> Term | None:
        """What may follow the last declared member when `count` members came before (or more, at the cap)."""
        need = max(0, members.low - count) if members.low > members.required else 0
        most = members.most_others
        if members.high is not None:
            counts_all = members.counted > members.high
            most = min(most, members.high - (count if counts_all else len(members.slots)))
        if need > 1 or most < need or (members.other is None and need):
            return None
        if count:
            return repeat(seq(self._owner.whole.marks.comma, members.other), need, most)
        if members.other is None or most == 0:
            return None
        more = repeat(seq(self._owner.whole.marks.comma, members.other), 0, most - 1)
        return seq(members.other, more)

    def _other_member(self, flat: Flat, scope: Scope) -> Term | None:
        """Any one member that is not declared; one alternative for each pattern and one for the rest."""
        owner, longest = self._owner, self._owner.whole.bounds.key
        keys = keys_without(flat.declared, longest)
        if keys is not None and flat.names:
            keys = self._named(flat, keys, scope)
        if keys is None:
            return None
        patterns = {name: at for part in flat.objects for name, at in part.patterns}
        found = {name: owner.pattern_term_at(name, at.pointer, longest) for name, at in patterns.items()}
        options = []
        for name in patterns:
            others = alt(term for other, term in found.items() if other != name)
            options.append(self._member(both(keys, without(found[name], others)), self._governing(flat, name), scope))
        says_rest = any(part.additional is not None for part in flat.objects) or not patterns
        if says_rest:
            options.append(self._member(without(keys, alt(found.values())), self._governing(flat, None), scope))
        return owner.whole.fresh(alt(options))

    def _governing(self, flat: Flat, pattern: str | None) -> Conjunction:
        """The subschemas of an undeclared member whose key matches this pattern and no other."""
        found: list[Located] = []
        for part in flat.objects:
            own = [at for name, at in part.patterns if name == pattern]
            found += own or ([part.additional] if part.additional is not None else [])
        return tuple(found)

    def _member(self, key: Term | None, governing: Conjunction, scope: Scope) -> Term | None:
        key = self._owner.whole.inhabited(key)
        if key is None:
            return None
        return seq(self._owner.whole.marks.key(key), self._owner.value(governing, scope))

    def _named(self, flat: Flat, keys: Term, scope: Scope) -> Term | None:
        """The keys that `propertyNames` allows as well."""
        joined = self._owner.flatten(flat.names, scope)
        if joined is None:
            return None
        names = joined[0]
        if names.choices:
            raise self._owner.problem(flat.names[0].pointer, "anyOf and oneOf are not supported in propertyNames")
        if names.enum is not None:
            allowed = [name for name in names.enum if isinstance(name, str) and name not in flat.declared]
            return alt(Text(name) for name in allowed if self._owner.judge.allows(flat.names, name))
        if "string" not in names.kinds:
            return None
        return both(keys, self._owner.string(names))
