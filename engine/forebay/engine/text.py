"""Text to tokens and back: encoding, the chat template, incremental detokenizing and stop strings.

Holds: the deltas of a detokenizer joined are the full decode of its tokens, and no delta ends inside a UTF-8
sequence; text after a stop string is never given out, however tokens cut it; a chat template runs in a sandbox
with bounded output. Encoding releases the interpreter lock, so callers may run it in a thread.
Called by the server's handlers, one `Detokenizer` and one `StopMatcher` for each answer.
"""

import codecs
import datetime
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.sandbox
import tokenizers

from forebay.contract.errors import InvalidRequest, InvalidSpec
from forebay.engine.loader.checkpoint import TokenizerSource
from forebay.engine.structured.tool_prompt import knows_tools, with_tool_block

MAX_RENDERED_CHARS = 16 << 20
_MAX_REPEAT_CHARS = 1 << 20
_HELD_TOKENS = 8
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
_SPACE_MARK = "\u2581"
"""Stands for a space in the tokens of sentence-piece models."""


def _byte_of_char() -> dict[str, int]:
    """The byte-level BPE alphabet: printable Latin-1 bytes stand for themselves, the rest for chr(256) upwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    table.update({chr(256 + rank): byte for rank, byte in enumerate(others)})
    return table


_BYTE_OF_CHAR = _byte_of_char()


class TextCodec:
    """A model's tokenizer and chat template. Immutable after construction and safe to share between threads."""

    def __init__(self, source: TokenizerSource) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_str(source.tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        decoder = json.loads(self._tokenizer.to_str()).get("decoder") or {}
        self.digest = hashlib.sha256(source.tokenizer_json.encode()).hexdigest()
        self.is_byte_level = decoder.get("type") == "ByteLevel"
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._special_text = _any_of(token.content for token in added.values() if token.special)
        self.vocabulary_size = self._tokenizer.get_vocab_size()
        self.longest_token_chars = max(len(token) for token in self._tokenizer.get_vocab())
        self.template_source = source.chat_template or ""
        self._template = ChatTemplate(source) if source.chat_template else None
        self._bytes: dict[int, bytes] = {}

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a plain prompt, with the beginning-of-text token where the model wants one."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=True).ids
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text alone, without a beginning-of-text token."""
        return self._ids(self._tokenizer, text)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Token ids of a rendered conversation; only the template writes special tokens.

        What looks like one inside a message or a tool stays text, so a message cannot end its turn or begin another.
        """
        given = {"messages": list(messages), "tools": list(tools)}
        quoted: list[str] = []
        for text in _strings(given):
            quoted += self._special_text.findall(text)
        if not quoted:
            return self._ids(self._tokenizer, self.render_chat(messages, tools))
        mark = _unused_mark(given)
        places: list[str] = []

        def hidden(found: re.Match[str]) -> str:
            places.append(found[0])
            return f"{mark}{len(places) - 1}{mark}"

        marked = _mapped(given, lambda text: self._special_text.sub(hidden, text))
        parts = re.split(f"{mark}([0-9]+){mark}", self.render_chat(marked["messages"], marked["tools"]))
        ids: list[int] = []
        for order, part in enumerate(parts):
            is_quoted = order % 2 == 1
            ids += self._ids(self._as_text, places[int(part)]) if is_quoted else self._ids(self._tokenizer, part)
        return ids

    @staticmethod
    def _ids(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    @functools.cached_property
    def _as_text(self) -> tokenizers.Tokenizer:
        """The same tokenizer, for which special tokens are ordinary text."""
        tokenizer = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
        tokenizer.encode_special_tokens = True
        return tokenizer

    def render_chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The prompt text of a conversation; raises `InvalidRequest` naming `messages` when the template refuses it."""
        if self._template is None:
            raise InvalidRequest("messages: this model has no chat template; use /v1/completions", param="messages")
        has_calls = any(message["role"] == "tool" or "tool_calls" in message for message in messages)
        if (tools or has_calls) and not knows_tools(self.template_source):
            return self._template.render(with_tool_block(messages, tools))
        return self._template.render(messages, tools)

    def decode(self, ids: Sequence[int]) -> str:
        """The whole text of `ids` without special tokens."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def decode_all(self, ids: Sequence[int]) -> str:
        """The whole text of `ids` with special tokens as they are written."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to the output of a byte-level tokenizer; empty for special and unknown ids."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._token_bytes(token_id)
        return known

    def _token_bytes(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._special_ids:
            return b""
        try:
            return bytes([_BYTE_OF_CHAR[char] for char in token])
        except KeyError:
            return str(token).encode()

    def token_text(self, token_id: int) -> tuple[str, bytes]:
        """One token as log probabilities show it: text (U+FFFD for parts of characters) and bytes."""
        token = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._special_ids:
            text = str(token or "")
            return text, text.encode()
        if self.is_byte_level:
            raw = self.token_bytes(token_id)
        elif byte := _BYTE_TOKEN.fullmatch(token):
            raw = bytes([int(byte[1], 16)])
        else:
            raw = str(token).replace(_SPACE_MARK, " ").encode()
        return raw.decode(errors="replace"), raw

    def detokenizer(self) -> "Detokenizer":
        """A fresh detokenizer for one answer."""
        return ByteDetokenizer(self) if self.is_byte_level else WindowDetokenizer(self)


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Finds any of the texts, the longest first; finds nothing when there is none."""
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _strings(value: Any) -> Iterator[str]:
    """Every text in a JSON value, names of members included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _strings(name)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with every text changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): _mapped(item, change) for name, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list | tuple) else value


def _unused_mark(value: Any) -> str:
    """A private-use character that no text has."""
    used: set[str] = set().union(*_strings(value))
    return next(mark for mark in map(chr, range(0xF0000, 0xFFFFE)) if mark not in used)


class Detokenizer:
    """Turns tokens into text as they come. `push` returns what is certain, `finish` the rest."""

    def push(self, ids: Iterable[int]) -> str:
        """Text that these tokens complete; may be empty while a character is unfinished."""
        raise NotImplementedError

    def finish(self) -> str:
        """The text held back, with U+FFFD for a sequence that never became a character."""
        raise NotImplementedError


class ByteDetokenizer(Detokenizer):
    """Exact for byte-level tokenizers: token bytes through an incremental UTF-8 decoder."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """See `Detokenizer.push`."""
        return self._utf8.decode(b"".join(map(self._codec.token_bytes, ids)))

    def finish(self) -> str:
        """See `Detokenizer.finish`."""
        return self._utf8.decode(b"", final=True)


class WindowDetokenizer(Detokenizer):
    """For any other tokenizer: decodes a short window twice and gives out the difference.

    Text that ends in U+FFFD may be an unfinished character and is held, for at most `_HELD_TOKENS` tokens.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._ids: list[int] = []
        self._given = 0

    def push(self, ids: Iterable[int]) -> str:
        """See `Detokenizer.push`."""
        self._ids.extend(ids)
        before = self._codec.decode(self._ids[: self._given])
        after = self._codec.decode(self._ids)
        if after.endswith("\ufffd") and len(self._ids) - self._given < _HELD_TOKENS:
            return ""
        self._ids = self._ids[self._given :]
        self._given = len(self._ids)
        return after[len(before) :]

    def finish(self) -> str:
        """See `Detokenizer.finish`."""
        before = self._codec.decode(self._ids[: self._given])
        after = self._codec.decode(self._ids)
        self._ids, self._given = [], 0
        return after[len(before) :]


class StopMatcher:
    """Cuts a text at the first stop string to be complete, whatever pieces the text comes in.

    The longest tail that could still become a stop string is held back, so nothing of one is ever given out.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=0)
        self._held = ""
        self.hit: str | None = None

    @property
    def is_armed(self) -> bool:
        """Whether there is any stop string."""
        return self._longest > 0

    def push(self, text: str) -> str:
        """Text that may be given out. After a hit `self.hit` is the stop string and nothing more comes."""
        if self.hit is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        matches = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if matches:
            _, at, self.hit = min(matches)
            self._held = ""
            return text[:at]
        keep = self._tail_length(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text held back when the answer ends without a hit."""
        held, self._held = self._held, ""
        return held

    def _tail_length(self, text: str) -> int:
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[len(text) - length :]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """No attribute access to internals, no mutation, and no repetition that grows without bound."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        for sized, times in ((left, right), (right, left)):
            is_bounded = not isinstance(sized, str | list | tuple) or (
                isinstance(times, int) and len(sized) * times <= _MAX_REPEAT_CHARS
            )
            if not is_bounded:
                raise jinja2.TemplateRuntimeError("the template repeats a value too often")
        if operator == "**":
            raise jinja2.TemplateRuntimeError("the template uses a power")
        return super().call_binop(context, operator, left, right)


_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What an expression of a template may raise on messages that its author did not think of."""


class ChatTemplate:
    """A compiled chat template of one model."""

    def __init__(self, source: TokenizerSource) -> None:
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, autoescape=False)
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source.chat_template or "")
        except jinja2.TemplateSyntaxError as error:
            raise InvalidSpec(f"the model's chat template is not valid: {error}", field="model") from error
        self._special = {"bos_token": source.bos_token or "", "eos_token": source.eos_token or ""}

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The prompt text; raises `InvalidRequest` when the template refuses the messages or writes too much."""
        pieces: list[str] = []
        total = 0
        given = {"messages": list(messages), "tools": list(tools) or None, "add_generation_prompt": True}
        try:
            for piece in self._template.generate(**given, **self._special):
                total += len(piece)
                if total > MAX_RENDERED_CHARS:
                    raise InvalidRequest("messages: the rendered conversation is too long", param="messages")
                pieces.append(piece)
        except _TEMPLATE_FAILURES as error:
            raise InvalidRequest(
                f"messages: the chat template refuses this conversation: {error}", param="messages"
            ) from error
        return "".join(pieces)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> str:
    raise jinja2.TemplateRuntimeError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now(datetime.UTC).strftime(pattern)
