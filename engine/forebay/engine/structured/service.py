"""Grammars for requests, as the API process sees them: compiled, built in the core once, pinned while in use.

`use` gives the key that an `Add` names. The core holds what this module put and did not drop: the least recently used
grammars go when they exceed a size, never one that a request uses. Belongs to one event loop; the core's answers come
in through `note_built`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from forebay.contract.errors import EngineFault, InvalidRequest
from forebay.engine.messages import DropGrammar, Grammar, GrammarBuilt, Message
from forebay.engine.structured.compiler import Compiler
from forebay.engine.structured.source import GrammarSource

MAX_IN_CORE: Final = 1024


@dataclass(slots=True)
class _Entry:
    """One grammar in the core: its size, how many requests use it, and whether it is built."""

    size_bytes: int
    built: asyncio.Future[None]
    pins: int = field(default=0)


class Grammars:
    """The grammars of one engine. `send` writes to the core; `core_bytes` bounds payloads that no request uses."""

    def __init__(self, compiler: Compiler, send: Callable[[Message], None], core_bytes: int) -> None:
        self._compiler = compiler
        self._send = send
        self._core_bytes = core_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._held_bytes = 0

    @property
    def held(self) -> int:
        """Grammars in the core."""
        return len(self._entries)

    @property
    def used(self) -> int:
        """Grammars in the core that some request uses."""
        return sum(entry.pins > 0 for entry in self._entries.values())

    @asynccontextmanager
    async def use(self, source: GrammarSource, reasoning_end: tuple[int, ...] = ()) -> AsyncIterator[str]:
        """The key of a source's grammar, usable in the core until the context ends.

        With `reasoning_end` the grammar applies after those tokens. Raises what `Compiler.compile` raises, and
        `InvalidRequest` when the core cannot build it.
        """
        compiled = await self._compiler.compile(source)
        key = source.digest + "".join(f"-{token}" for token in reasoning_end)
        entry = self._entries.get(key)
        if entry is None:
            entry = _Entry(len(compiled.payload), asyncio.get_running_loop().create_future())
            self._entries[key] = entry
            self._held_bytes += entry.size_bytes
            self._send(Grammar(key, compiled.backend, compiled.payload, reasoning_end))
        self._entries.move_to_end(key)
        entry.pins += 1
        try:
            await asyncio.shield(entry.built)
            yield key
        except InvalidRequest as error:
            if error.param is None:
                raise InvalidRequest(f"{source.param}: {error.message}", param=source.param) from error
            raise
        finally:
            entry.pins -= 1
            self._evict()

    @property
    def compilations(self) -> int:
        """Grammars compiled so far."""
        return self._compiler.compilations

    @property
    def compile_s(self) -> float:
        """Seconds spent compiling them."""
        return self._compiler.compile_s

    def note_built(self, built: GrammarBuilt) -> None:
        """The core has built a grammar, or says why it cannot."""
        entry = self._entries.get(built.key)
        if entry is None or entry.built.done():
            return
        if built.problem:
            self._forget(built.key)
            entry.built.set_exception(InvalidRequest(built.problem))
            entry.built.exception()
        else:
            entry.built.set_result(None)

    def fail(self, message: str) -> None:
        """The core has ended: whoever waits for it hears so."""
        for entry in self._entries.values():
            if not entry.built.done():
                entry.built.set_exception(EngineFault(message))
                entry.built.exception()

    def _evict(self) -> None:
        unused = [key for key, entry in self._entries.items() if entry.pins == 0]
        for key in unused:
            if self._held_bytes <= self._core_bytes and len(self._entries) <= MAX_IN_CORE:
                return
            self._forget(key)

    def _forget(self, key: str) -> None:
        entry = self._entries.pop(key)
        self._held_bytes -= entry.size_bytes
        self._send(DropGrammar(key))

    async def close(self) -> None:
        """Kill the compile processes."""
        await self._compiler.close()
