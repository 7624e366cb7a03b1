"""Reads the structured-output fields of a request body into one `StructuredRequest`. Pure, no grammar library.

Only shapes and sizes are checked here; what a schema or grammar says is checked in the compile process, which can be
killed. Fields read: `response_format`, `structured_outputs`, `tools`, `tool_choice` and `parallel_tool_calls`.
Called by `server/openai.py`; the bodies of /v1/responses are brought to the chat shape first.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from forebay.contract.errors import InvalidRequest
from forebay.engine.keys import EngineConfig
from forebay.engine.server.fields import Fields, kind_of, shown
from forebay.engine.structured.bounds import Bounds
from forebay.engine.structured.source import JSON_KINDS, GrammarSource, SourceKind

FIELDS: Final = ("response_format", "structured_outputs", "tools", "tool_choice", "parallel_tool_calls")
"""The body fields that `parse` reads; the caller counts them as read."""
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_EXTENSIONS: Final = {
    "json": SourceKind.JSON_SCHEMA,
    "regex": SourceKind.REGEX,
    "grammar": SourceKind.GRAMMAR,
    "lark": SourceKind.LARK,
    "structural_tag": SourceKind.STRUCTURAL_TAG,
}
_JSON_TEXTS: Final = frozenset({SourceKind.JSON_SCHEMA, SourceKind.STRUCTURAL_TAG})


@dataclass(frozen=True, slots=True)
class StructuredSettings:
    """Limits and defaults of structured output; `max_source_bytes` bounds one schema or grammar, or all tools."""

    backend: str
    max_source_bytes: int
    max_tools: int
    bounds: Bounds

    @classmethod
    def of(cls, config: EngineConfig) -> "StructuredSettings":
        """The settings that an engine's configuration makes."""
        bounds = Bounds(
            string=config.structured_max_string,
            items=config.structured_max_items,
            whitespace=config.structured_max_whitespace,
        )
        return cls(config.structured_backend, config.grammar_max_bytes, config.max_tools, bounds)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; `parameters` is the JSON schema of its arguments as the client sent it."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """The tool in OpenAI's shape, as chat templates expect it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class StructuredRequest:
    """What a request asks of the form of its answer.

    `source` is the grammar to compile. `tools` go into the prompt; with any, the answer goes through a
    `ToolCallParser`. `is_json` says that a complete answer is one JSON document and never a tool call.
    """

    source: GrammarSource
    tools: tuple[Tool, ...] = ()

    @property
    def free_text(self) -> bool:
        """Whether plain prose is a complete answer too: tools that may be called, and no other form asked for."""
        if self.source.kind is not SourceKind.TOOLS:
            return False
        document = orjson.loads(self.source.text)
        return document["mode"] == "auto" and document["answer"] is None

    @property
    def is_json(self) -> bool:
        """Whether every complete answer is one JSON document."""
        return self.source.kind in JSON_KINDS


def parse(body: Mapping[str, Any], settings: StructuredSettings, *, chat: bool = True) -> StructuredRequest | None:
    """The structured part of a body, or None when it asks for nothing.

    Raises `InvalidRequest` naming the field. Without `chat` (plain completions) tools are refused.
    """
    fields = Fields(body)
    answer = _answer_source(fields, settings)
    tools = _tools(fields, settings)
    if tools and not chat:
        raise fields.refuse("tools", "needs /v1/chat/completions")
    called, mode = _choice(fields, tools)
    one_only = fields.boolean("parallel_tool_calls") is False
    if answer is not None or called:
        _refuse_conflicts(fields)
    if called:
        source = _tools_source(fields, called, mode, answer, settings, parallel=not one_only)
        return StructuredRequest(source, called)
    return None if answer is None else StructuredRequest(answer)


def _tools_source(
    fields: Fields,
    tools: tuple[Tool, ...],
    mode: str,
    answer: GrammarSource | None,
    settings: StructuredSettings,
    *,
    parallel: bool,
) -> GrammarSource:
    document = {
        "mode": mode,
        "parallel": parallel,
        "tools": [{"name": tool.name, "parameters": tool.parameters} for tool in tools],
        "answer": None if answer is None else {"kind": answer.kind.value, "text": answer.text, "param": answer.param},
    }
    return _source(SourceKind.TOOLS, _canonical(fields, "tools", document), "tools", settings)


def _refuse_conflicts(fields: Fields) -> None:
    """Fields under which a grammar could not end an answer."""
    if fields.boolean("ignore_eos"):
        raise fields.refuse("ignore_eos", "cannot be used with structured output: only an end token can follow it")
    if fields.integer("min_tokens", 0, 1 << 62):
        raise fields.refuse("min_tokens", "cannot be used with structured output: the grammar says where it ends")


def _answer_source(fields: Fields, settings: StructuredSettings) -> GrammarSource | None:
    from_format = _response_format(fields, settings)
    from_extension = _extension(fields, settings)
    if from_format is not None and from_extension is not None:
        raise fields.refuse("structured_outputs", "cannot be used together with response_format")
    return from_format or from_extension


def _response_format(fields: Fields, settings: StructuredSettings) -> GrammarSource | None:
    form = fields.object("response_format")
    if form is None:
        return None
    kind = form.string("type")
    if kind not in ("text", "json_object", "json_schema"):
        given = "nothing" if kind is None else shown(kind)
        raise form.refuse("type", f"must be text, json_object or json_schema, not {given}")
    source = None
    if kind == "json_object":
        source = _source(SourceKind.JSON_OBJECT, "{}", "response_format", settings)
    elif kind == "json_schema":
        source = _json_schema(form, settings)
    form.finish(frozenset(), {})
    return source


def _json_schema(form: Fields, settings: StructuredSettings) -> GrammarSource:
    wrapper = form.object("json_schema")
    if wrapper is None:
        raise form.refuse("json_schema", "is required: {name, schema}")
    name = wrapper.string("name")
    if name is None or not _TOOL_NAME.match(name):
        raise wrapper.refuse("name", "is required: letters, digits, '_', '.' and '-', at most 64")
    wrapper.string("description")
    wrapper.boolean("strict")
    schema = wrapper.get("schema")
    if not isinstance(schema, dict | bool):
        raise wrapper.refuse("schema", f"must be a JSON schema, not {kind_of(schema)}")
    wrapper.finish(frozenset(), {})
    param = wrapper.name("schema")
    return _source(SourceKind.JSON_SCHEMA, _canonical(wrapper, "schema", schema), param, settings)


def _extension(fields: Fields, settings: StructuredSettings) -> GrammarSource | None:
    options = fields.object("structured_outputs")
    if options is None:
        return None
    given = [(name, value) for name in _EXTENSIONS if (value := options.get(name)) is not None]
    options.finish(frozenset(), {})
    if len(given) != 1:
        raise fields.refuse("structured_outputs", f"must have exactly one of {', '.join(_EXTENSIONS)}")
    name, value = given[0]
    kind = _EXTENSIONS[name]
    text = _json_text(options, name, value, settings) if kind in _JSON_TEXTS else options.string(name)
    if not text:
        raise options.refuse(name, "must not be empty")
    return _source(kind, text, options.name(name), settings)


def _json_text(fields: Fields, name: str, value: Any, settings: StructuredSettings) -> str:
    """Canonical text of a schema or tag that came as an object, or as the text of one."""
    if isinstance(value, str):
        if len(value) > settings.max_source_bytes:
            raise fields.refuse(name, f"is longer than {settings.max_source_bytes} bytes")
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise fields.refuse(name, f"is not valid JSON: {error}") from error
    if not isinstance(value, dict | bool):
        raise fields.refuse(name, f"must be an object, not {kind_of(value)}")
    return _canonical(fields, name, value)


def _canonical(fields: Fields, name: str, value: Any) -> str:
    """JSON text in the order the client wrote: properties are generated in that order."""
    try:
        return orjson.dumps(value).decode()
    except (orjson.JSONEncodeError, UnicodeEncodeError) as error:
        raise fields.refuse(name, f"cannot be written as JSON: {error}") from error


def _source(kind: SourceKind, text: str, param: str, settings: StructuredSettings) -> GrammarSource:
    source = GrammarSource(kind, text, param, settings.backend, settings.bounds)
    if source.size_bytes > settings.max_source_bytes:
        raise InvalidRequest(
            f"{param}: has {source.size_bytes} bytes; this engine compiles at most {settings.max_source_bytes}",
            param=param,
        )
    return source


def _tools(fields: Fields, settings: StructuredSettings) -> tuple[Tool, ...]:
    items = fields.array("tools", settings.max_tools) or []
    tools = tuple(_tool(f"tools[{place}]", item) for place, item in enumerate(items))
    names = [tool.name for tool in tools]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise fields.refuse(f"tools[{place}].function.name", f"{shown(name)} is given twice")
    return tools


def _tool(path: str, item: Any) -> Tool:
    if not isinstance(item, dict):
        raise InvalidRequest(f"{path}: must be an object, not {kind_of(item)}", param=path)
    fields = Fields(item, path)
    if fields.string("type") != "function":
        raise fields.refuse("type", f"must be function, not {shown(item.get('type'))}")
    function = fields.object("function")
    if function is None:
        raise fields.refuse("function", "is required")
    fields.finish(frozenset(), {})
    name = function.string("name")
    if name is None or not _TOOL_NAME.match(name):
        raise function.refuse("name", "is required: letters, digits, '_', '.' and '-', at most 64")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise function.refuse("parameters", f"must be a JSON schema, not {kind_of(parameters)}")
    description = function.string("description") or ""
    function.boolean("strict")
    function.finish(frozenset(), {})
    return Tool(name, description, parameters or {"type": "object", "properties": {}, "additionalProperties": False})


def _choice(fields: Fields, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], str]:
    """The tools that may be called and whether one must be ("required") or may be ("auto")."""
    value = fields.get("tool_choice")
    if value is None:
        return tools, "auto"
    if isinstance(value, dict):
        return _named_choice(fields, tools), "required"
    if value not in ("none", "auto", "required"):
        raise fields.refuse("tool_choice", f"must be none, auto, required or a named function, not {shown(value)}")
    if value == "required" and not tools:
        raise fields.refuse("tool_choice", "required needs tools")
    return (() if value == "none" else tools), str(value)


def _named_choice(fields: Fields, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    choice = fields.object("tool_choice")
    if choice is None or choice.string("type") != "function":
        raise fields.refuse("tool_choice", "must be {type: function, function: {name}}")
    function = choice.object("function")
    name = None if function is None else function.string("name")
    choice.finish(frozenset(), {})
    named = tuple(tool for tool in tools if tool.name == name)
    if not named:
        raise fields.refuse("tool_choice", f"names {shown(name)}, which is not among the tools")
    return named
