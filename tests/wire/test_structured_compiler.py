"""The compile processes: caps on time, memory and queue, what is kept, and that no client stalls another."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from forebay.contract.errors import EngineFault, InvalidRequest, Overloaded
from forebay.engine.messages import DropGrammar, Grammar, GrammarBuilt, Message
from forebay.engine.structured.bounds import Bounds
from forebay.engine.structured.compiler import CompileLimits, Compiler, CompilerModel
from forebay.engine.structured.frames import Compiled
from forebay.engine.structured.service import Grammars
from forebay.engine.structured.source import GrammarSource, SourceKind
from grammar_walk import small_tokenizer

pytestmark = pytest.mark.wire


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CompilerModel:
    """A folder with the small tokenizer, which is all of a model that compiling needs."""
    folder = tmp_path_factory.mktemp("model")
    source = small_tokenizer()
    (folder / "tokenizer.json").write_text(source.tokenizer_json, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"eos_token_id": source.eos_ids[0]}), encoding="utf-8")
    return CompilerModel(folder, source.eos_ids[0] + 1, source.eos_ids)


@asynccontextmanager
async def compiling(model: CompilerModel, **limits: Any) -> AsyncIterator[Compiler]:
    compiler = Compiler(model, CompileLimits(**{"seconds": 20.0, "cache_bytes": 1 << 20, **limits}), time.monotonic)
    try:
        yield compiler
    finally:
        await compiler.close()


def schema(value: Any) -> GrammarSource:
    return GrammarSource(SourceKind.JSON_SCHEMA, json.dumps(value), "schema", "auto", Bounds())


def slow(number: int = 0) -> GrammarSource:
    """A schema with many optional members, of which no two are equal."""
    parts = {f"m{place}": {"$ref": "#/$defs/o"} for place in range(900)}
    return schema(
        {"$defs": {"o": {"properties": {f"p{place}": {"const": number} for place in range(200)}}}, "properties": parts}
    )


async def refusal(compiler: Compiler, source: GrammarSource) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        await compiler.compile(source)
    assert caught.value.param == "schema"
    return caught.value


async def test_a_source_compiles_once_and_a_refusal_is_kept_too(model: CompilerModel) -> None:
    async with compiling(model) as compiler:
        first, second = await asyncio.gather(compiler.compile(schema({})), compiler.compile(schema({})))
        assert first == second == await compiler.compile(schema({}))
        assert compiler.compilations == 1
        assert "'not'" in (await refusal(compiler, schema({"not": {}}))).message
        assert "'not'" in (await refusal(compiler, schema({"not": {}}))).message
        assert compiler.compilations == 2


async def test_a_source_over_its_time_is_refused_and_the_next_one_compiles(model: CompilerModel) -> None:
    async with compiling(model, seconds=0.05) as compiler:
        big = schema({"enum": [f"value {place} {'x' * 40}" for place in range(30_000)]})
        began = time.monotonic()
        assert "longer to compile than 0.05 s" in (await refusal(compiler, big)).message
        assert time.monotonic() - began < 30
    async with compiling(model) as compiler:
        assert isinstance(await compiler.compile(schema({})), Compiled)


async def test_a_source_over_its_memory_is_refused(model: CompilerModel) -> None:
    async with compiling(model, memory_bytes=8 << 20) as compiler:
        big = schema({"enum": [f"value {place} {'x' * 40}" for place in range(60_000)]})
        assert (await refusal(compiler, big)).message
        assert isinstance(await compiler.compile(schema({"type": "null"})), Compiled)


async def test_a_large_hostile_schema_does_not_stall_a_small_one(model: CompilerModel) -> None:
    async with compiling(model, seconds=6.0) as compiler:
        await compiler.compile(schema({"type": "null"}))
        values = [f"{place}-{'y' * 10}" for place in range(100)]
        members = {f"p{place}": {"enum": values, "description": "d" * 900} for place in range(90)}
        hostile = schema({"allOf": [{"properties": members}, {"minProperties": 60}]})
        assert hostile.size_bytes > 100_000
        stalled = asyncio.create_task(compiler.compile(hostile))
        await asyncio.sleep(0)
        began = time.monotonic()
        await compiler.compile(schema({"type": "boolean"}))
        small_s = time.monotonic() - began
        assert small_s < 3.0
        (ending,) = await asyncio.gather(stalled, return_exceptions=True)
        assert isinstance(ending, Compiled | InvalidRequest)


async def test_a_process_that_is_killed_idle_is_replaced(model: CompilerModel) -> None:
    async with compiling(model) as compiler:
        await compiler.compile(schema({"type": "null"}))
        os.kill(_worker(), signal.SIGKILL)
        assert isinstance(await compiler.compile(schema({"type": "boolean"})), Compiled)


def _worker() -> int:
    """The process id of the one compile process that this process has."""
    task = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    children = Path(task).read_text(encoding="ascii").split()
    named = [int(pid) for pid in children if b"structured.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    (worker,) = named
    return worker


async def test_the_queue_is_bounded_and_close_ends_what_waits(model: CompilerModel) -> None:
    async with compiling(model, max_waiting=2) as compiler:
        waiting = [asyncio.create_task(compiler.compile(slow(number))) for number in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await compiler.compile(slow(2))
        for task in waiting:
            task.cancel()


async def test_a_compiler_that_cannot_start_is_not_the_clients_fault(tmp_path: Path) -> None:
    async with compiling(CompilerModel(tmp_path / "none", 10, (1,))) as compiler:
        with pytest.raises(EngineFault):
            await compiler.compile(schema({}))


class Core:
    """Takes messages as a core does and builds everything at once."""

    def __init__(self) -> None:
        self.held: dict[str, Grammar] = {}
        self.put = 0
        self.grammars: Grammars | None = None

    def send(self, message: Message) -> None:
        if isinstance(message, Grammar):
            self.put += 1
            self.held[message.key] = message
            assert self.grammars is not None
            problem = "no such thing" if message.payload.count("never") else ""
            asyncio.get_running_loop().call_soon(self.grammars.note_built, GrammarBuilt(message.key, problem))
        elif isinstance(message, DropGrammar):
            del self.held[message.key]


async def test_the_core_gets_a_grammar_once_and_loses_it_only_when_nobody_uses_it(model: CompilerModel) -> None:
    core = Core()
    async with compiling(model) as compiler:
        core.grammars = grammars = Grammars(compiler, core.send, core_bytes=0)
        source = schema({"type": "null"})
        async with grammars.use(source) as key, grammars.use(source) as again:
            assert key == again
            assert core.put == 1
            async with grammars.use(source, (7, 8)) as sleeping:
                assert sleeping != key
                assert core.held[sleeping].reasoning_end == (7, 8)
            assert set(core.held) == {key}
        assert not core.held


async def test_a_grammar_that_the_core_cannot_build_is_a_refusal_and_a_dead_core_a_fault(model: CompilerModel) -> None:
    core = Core()
    async with compiling(model) as compiler:
        core.grammars = grammars = Grammars(compiler, core.send, core_bytes=1 << 20)
        with pytest.raises(InvalidRequest, match="schema: no such thing"):
            async with grammars.use(schema({"const": "never"})):
                raise AssertionError("the grammar is not usable")
        assert not core.held
        silent = Grammars(compiler, lambda _: None, core_bytes=1 << 20)

        async def use() -> None:
            async with silent.use(schema({"type": "null"})):
                raise AssertionError("the core never answers")

        waiting = asyncio.create_task(use())
        await asyncio.wait([waiting], timeout=2.0)
        silent.fail("the core process ended")
        with pytest.raises(EngineFault):
            await waiting
