"""Grammars of answers that may call tools, and of structural tags: free text with constrained parts. Pure.

A call is written as `<tool_call>{"name": ..., "arguments": ...}</tool_call>`, the form of Hermes and Qwen templates.
Free text never contains a trigger, so the first trigger always begins a constrained part. Used by `compile.py`.
"""

from collections.abc import Sequence
from typing import Any, Final

from forebay.contract.errors import InvalidRequest
from forebay.engine.structured import json_text
from forebay.engine.structured.ecma import BadPattern, pattern_term
from forebay.engine.structured.lower import Lowering
from forebay.engine.structured.terms import (
    EMPTY,
    FREE,
    Lexeme,
    Repeat,
    Seq,
    Term,
    Text,
    Without,
    alt,
    lexeme,
    repeat,
    seq,
)

CALL_OPEN: Final = "<tool_call>"
CALL_CLOSE: Final = "</tool_call>"
MAX_CALLS: Final = 16
MAX_TAGS: Final = 256
MAX_MARK: Final = 256


def tools_term(lowering: Lowering, document: dict[str, Any], answer: Term | None) -> Term:
    """The grammar of a `GrammarSource` of kind tools; `answer` is what may come instead of calls."""
    bodies = [_call_body(lowering, place, tool) for place, tool in enumerate(document["tools"])]
    body = lowering.fresh(alt(bodies))
    most = MAX_CALLS - 1 if document["parallel"] else 0
    between = lowering.marks.blank
    if document["mode"] == "required" or answer is not None:
        call = seq(Lexeme(Text(CALL_OPEN)), body)
        calls = seq(call, repeat(seq(lexeme(seq(between, Text(CALL_OPEN))), body), 0, most))
        options = [calls, answer] if document["mode"] != "required" else [calls]
        return _required(alt(options), "tools")
    first = seq(lexeme(seq(_without([CALL_OPEN]), Text(CALL_OPEN))), body)
    more = repeat(seq(lexeme(seq(between, Text(CALL_OPEN))), body), 0, most)
    return _required(alt([lexeme(_without([CALL_OPEN])), seq(first, more)]), "tools")


def _call_body(lowering: Lowering, place: int, tool: dict[str, Any]) -> Term | None:
    """What stands between the marks of one call."""
    marks = lowering.marks
    arguments = lowering.schema(tool["parameters"], f"tools[{place}].function.parameters")
    blank, colon, comma = marks.blank, Text(":"), Text(",")
    head = seq(
        blank,
        Text('{"name"'),
        blank,
        colon,
        blank,
        json_text.plain_literal(tool["name"]),
        blank,
        comma,
        blank,
        Text('"arguments"'),
        blank,
        colon,
        blank,
    )
    return seq(lexeme(head), arguments, lexeme(seq(blank, Text("}"), blank, Text(CALL_CLOSE))))


def tags_term(lowering: Lowering, document: dict[str, Any], param: str) -> Term:
    """The grammar of a structural tag: free text in which each trigger begins one of its tags."""
    triggers, tags = _tags(document, param)
    parts = [_tag(lowering, tag, triggers, param) for tag in tags]
    free = _without(triggers)
    return _required(seq(Repeat(_required(alt(parts), param), 0, MAX_TAGS), lexeme(free)), param)


def _tags(document: dict[str, Any], param: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Triggers and tags of both shapes in use: `structures` with `triggers`, or a `triggered_tags` format."""
    form: Any = document.get("format", document)
    if not isinstance(form, dict) or (form is not document and form.get("type") != "triggered_tags"):
        raise InvalidRequest(f"{param}: format.type must be triggered_tags", param=param)
    known = {"type", "triggers", "structures", "tags", "format"}
    unknown = sorted((set(document) | set(form)) - known)
    if unknown:
        raise InvalidRequest(f"{param}: the field {unknown[0]!r} is not supported", param=param)
    triggers: Any = form.get("triggers")
    tags: Any = form.get("structures", form.get("tags"))
    if not _is_list_of(triggers, str) or not _is_list_of(tags, dict):
        raise InvalidRequest(f"{param}: needs triggers (texts) and structures (objects)", param=param)
    return list(triggers), list(tags)


def _is_list_of(value: Any, kind: type) -> bool:
    is_list = isinstance(value, list) and 0 < len(value) <= MAX_TAGS
    return is_list and all(isinstance(item, kind) and item for item in value)


def _tag(lowering: Lowering, tag: dict[str, Any], triggers: Sequence[str], param: str) -> Term | None:
    begin, end = tag.get("begin"), tag.get("end", "")
    if not isinstance(begin, str) or not isinstance(end, str) or max(len(begin), len(end)) > MAX_MARK:
        raise InvalidRequest(f"{param}: begin and end of a tag must be texts of at most {MAX_MARK}", param=param)
    trigger = next((text for text in triggers if begin.startswith(text)), None)
    if trigger is None:
        raise InvalidRequest(f"{param}: the tag that begins with {begin!r} has no trigger", param=param)
    content = _content(lowering, tag, param)
    return seq(lexeme(seq(_without(triggers), Text(begin))), content, lexeme(Text(end)) if end else EMPTY)


def _content(lowering: Lowering, tag: dict[str, Any], param: str) -> Term | None:
    """What a tag holds: a JSON schema, or a pattern."""
    content = tag.get("content", {"type": "json_schema", "json_schema": tag.get("schema", {})})
    unknown = sorted(set(tag) - {"type", "begin", "end", "schema", "content"})
    if unknown:
        raise InvalidRequest(f"{param}: the field {unknown[0]!r} of a tag is not supported", param=param)
    match content:
        case {"type": "json_schema", "json_schema": schema}:
            return lowering.schema(schema, param)
        case {"type": "regex", "pattern": str(pattern)}:
            try:
                return lexeme(pattern_term(f"^(?:{pattern})$", lowering.bounds.string))
            except BadPattern as error:
                raise InvalidRequest(f"{param}: this pattern is not supported: {error}", param=param) from error
    raise InvalidRequest(f"{param}: the content of a tag must be a json_schema or a regex", param=param)


def _without(triggers: Sequence[str]) -> Term:
    """Free text in which no trigger stands."""
    found = alt(Text(trigger) for trigger in triggers)
    return FREE if found is None else Without(FREE, Seq((FREE, found, FREE)))


def _required(term: Term | None, param: str) -> Term:
    if term is None:
        raise InvalidRequest(f"{param}: no answer satisfies this", param=param)
    return term
