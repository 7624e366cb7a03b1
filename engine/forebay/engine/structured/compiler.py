"""The API process's side of compilation: processes that can be killed, time and size caps, and a cache by digest.

Two lanes, each one process at most, started when first needed: small sources do not wait behind large ones. A lane
compiles one grammar at a time; its queue is bounded. What takes too long is killed and is its client's 400. Equal
sources compile once, also when they come together; results, refusals among them, are kept up to a size.
"""

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from forebay.contract.errors import EngineFault, InvalidRequest, Overloaded
from forebay.engine.structured.frames import HEADER, Compiled, body_length, frame
from forebay.engine.structured.source import GrammarSource

SMALL_BYTES: Final = 16 << 10
MAX_PAYLOAD_BYTES: Final = 16 << 20
_START_S: Final = 120.0
_REFUSAL_BYTES: Final = 512

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """`seconds` and `memory_bytes` of one compilation, `cache_bytes` of results, `max_waiting` sources in a lane."""

    seconds: float
    cache_bytes: int
    memory_bytes: int = 1 << 30
    max_waiting: int = 32


@dataclass(frozen=True, slots=True)
class CompilerModel:
    """The model whose vocabulary grammars are compiled for."""

    path: Path
    vocabulary: int
    eos_ids: tuple[int, ...]


class TooSlow(InvalidRequest):
    """A compilation over its time. Not kept: on a quieter machine the same source may be in time."""


class Compiler:
    """Compiles grammar sources for one model. Belongs to one event loop."""

    def __init__(self, model: CompilerModel, limits: CompileLimits, now_s: Callable[[], float]) -> None:
        self._limits = limits
        self._now_s = now_s
        self._lanes = {is_small: _Lane(model, limits) for is_small in (True, False)}
        self._cache: OrderedDict[str, Compiled | InvalidRequest] = OrderedDict()
        self._cached_bytes = 0
        self._running: dict[str, asyncio.Task[Compiled]] = {}
        self.compile_s = 0.0
        self.compilations = 0

    async def compile(self, source: GrammarSource) -> Compiled:
        """The compiled grammar. `InvalidRequest` when it does not compile in time, `Overloaded` when too many wait."""
        digest = source.digest
        known = self._cache.get(digest)
        if known is not None:
            self._cache.move_to_end(digest)
            if isinstance(known, Compiled):
                return known
            raise InvalidRequest(known.message, param=known.param)
        task = self._running.get(digest)
        if task is None:
            lane = self._lanes[source.size_bytes <= SMALL_BYTES]
            if lane.waiting >= self._limits.max_waiting:
                raise Overloaded("too many grammars wait to be compiled", after_s=self._limits.seconds)
            lane.waiting += 1
            task = asyncio.create_task(self._compile(digest, source, lane))
            self._running[digest] = task
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _compile(self, digest: str, source: GrammarSource, lane: "_Lane") -> Compiled:
        began_s = self._now_s()
        try:
            compiled = await lane.compile(source)
        except TooSlow:
            raise
        except InvalidRequest as error:
            self._keep(digest, error)
            raise
        finally:
            lane.waiting -= 1
            del self._running[digest]
            self.compile_s += self._now_s() - began_s
            self.compilations += 1
        self._keep(digest, compiled)
        return compiled

    def _keep(self, digest: str, result: Compiled | InvalidRequest) -> None:
        self._cache[digest] = result
        self._cached_bytes += _size_bytes(result)
        while self._cached_bytes > self._limits.cache_bytes and self._cache:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= _size_bytes(dropped)

    async def close(self) -> None:
        """Kill the processes; compilations that run end as cancelled."""
        for task in self._running.values():
            task.cancel()
        for lane in self._lanes.values():
            await lane.close()


def _size_bytes(result: Compiled | InvalidRequest) -> int:
    return _REFUSAL_BYTES + (len(result.payload) if isinstance(result, Compiled) else len(result.message))


class _Lane:
    """One compile process and those who wait for it."""

    def __init__(self, model: CompilerModel, limits: CompileLimits) -> None:
        self._model = model
        self._limits = limits
        self._turn = asyncio.Lock()
        self._process: Process | None = None
        self.waiting = 0

    async def compile(self, source: GrammarSource) -> Compiled:
        async with self._turn:
            return await self._attempt(source)

    async def _attempt(self, source: GrammarSource) -> Compiled:
        """One source to the process and its answer back; the process is killed when anything goes wrong."""
        is_whole = False
        try:
            process = await self._ready(source)
            answer = await self._result(process, source)
            is_whole = True
        finally:
            if not is_whole:
                await self.close()
        if "problem" in answer:
            raise InvalidRequest(answer["problem"], param=answer["param"])
        return Compiled(answer["backend"], answer["payload"])

    async def _ready(self, source: GrammarSource) -> Process:
        """The process, with the source handed over; one that died while it had nothing to do is replaced."""
        if self._process is not None:
            with suppress(EngineFault):
                return await self._handed_over(source)
            await self.close()
        return await self._handed_over(source)

    async def _handed_over(self, source: GrammarSource) -> Process:
        """The process, with the source handed over and the library for it loaded."""
        try:
            if self._process is None or self._process.returncode is not None:
                self._process = await self._start()
            _input(self._process).write(frame(source.document()))
            await _input(self._process).drain()
            await _read(self._process, _START_S)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            _log.warning("the compile process does not take a grammar: %r", error)
            raise EngineFault("the grammar compiler does not start") from error
        return self._process

    async def _start(self) -> Process:
        command = [sys.executable, "-m", "forebay.engine.structured.worker"]
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        setup = {
            "model": str(self._model.path),
            "vocabulary": self._model.vocabulary,
            "eos_ids": self._model.eos_ids,
            "memory_bytes": self._limits.memory_bytes,
            "seconds": self._limits.seconds,
        }
        _input(process).write(frame(setup))
        return process

    async def _result(self, process: Process, source: GrammarSource) -> dict[str, Any]:
        try:
            return await _read(process, self._limits.seconds)
        except TimeoutError:
            text = f"{source.param}: takes longer to compile than {self._limits.seconds:g} s"
            raise TooSlow(text, param=source.param) from None
        except (OSError, asyncio.IncompleteReadError) as error:
            text = f"{source.param}: needs more memory to compile than this engine allows"
            raise InvalidRequest(text, param=source.param) from error

    async def close(self) -> None:
        """Kill the process if there is one."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _input(process: Process) -> asyncio.StreamWriter:
    if process.stdin is None:
        raise OSError("the compile process has no stdin")
    return process.stdin


async def _read(process: Process, seconds: float) -> dict[str, Any]:
    """The next document; `TimeoutError` when it does not come in time, `OSError` when it is absurd."""
    if process.stdout is None:
        raise OSError("the compile process has no stdout")
    async with asyncio.timeout(seconds):
        length = body_length(await process.stdout.readexactly(HEADER.size))
        if length > MAX_PAYLOAD_BYTES:
            raise OSError(f"an answer of {length} bytes")
        document = orjson.loads(await process.stdout.readexactly(length))
    return dict(document)
