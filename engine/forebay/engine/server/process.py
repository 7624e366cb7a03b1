"""The life of the API process: start the core, load the tokenizer, serve, drain, stop with the right exit code.

The port listens before the model is loaded, so that probes get answers. SIGTERM drains: readiness first, running
requests finish within the grace, exit 0; a second signal stops at once. When the core ends by itself, every request
is told, and the process exits with 1 so that whoever supervises it starts a new one.
"""

import asyncio
import logging
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import uvloop
from aiohttp import web

from forebay.contract.errors import InvalidSpec
from forebay.contract.versions import VERSION
from forebay.engine.channel import open_api_channel
from forebay.engine.config import Environment
from forebay.engine.limits import PoolGroup
from forebay.engine.loader.checkpoint import ModelConfig, Pooling, read_pooling, read_tokenizer
from forebay.engine.messages import Start
from forebay.engine.resolve import Resolved
from forebay.engine.runner.compute import Compute
from forebay.engine.server.app import build_app
from forebay.engine.server.clients import Clients, read_clients
from forebay.engine.server.core_client import CoreClient
from forebay.engine.server.guard import GuardedConnection
from forebay.engine.server.metrics import EngineMetrics
from forebay.engine.server.service import Service
from forebay.engine.structured.compiler import CompileLimits, Compiler, CompilerModel
from forebay.engine.structured.service import Grammars
from forebay.engine.text import TextCodec

EXIT_FAULT = 1
EXIT_SECOND_SIGNAL = 143
_PING_INTERVAL_S = 1.0
_CORE_EXIT_S = 10.0
_FLUSH_S = 2.0
"""Time for handlers to write their last words once every request has been told to end."""
_BACKLOG = 1024

_log = logging.getLogger(__name__)


class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`; the same clock in every process of the machine."""
        return time.monotonic()

    def wall_s(self) -> float:
        """See `Clock.wall_s`."""
        return time.time()


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """Everything decided before a process starts."""

    resolved: Resolved
    model_path: Path
    model: ModelConfig
    compute: Compute
    environment: Environment
    groups: tuple[PoolGroup, ...]
    draft_path: Path | None = None


def serve(setup: EngineSetup) -> int:
    """Run the engine until it is told to stop or fails; returns the exit code."""
    return uvloop.run(_serve(setup, read_clients(setup.resolved.config.api_keys_file)))


async def _serve(setup: EngineSetup, entries: Mapping[str, tuple[str, Mapping[str, int]]]) -> int:
    config = setup.resolved.config
    listener = _listen(config.host, config.port)
    core, client = await _start_core(setup)
    clock = SystemClock()
    service = Service(
        setup.resolved,
        client,
        EngineMetrics(VERSION, config.served_names[0]),
        setup.environment.engine_id,
        clock,
        setup.model_path,
    )
    stop = _StopSignals()
    runner = web.AppRunner(
        build_app(service, Clients(entries, clock.monotonic_s())),
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=config.keepalive_seconds,
        shutdown_timeout=_FLUSH_S,
    )
    await runner.setup()
    server = await _open_port(runner, service, listener)
    _log.info("listening on %s:%d", config.host, config.port)
    reader = asyncio.create_task(client.run())
    helpers = [asyncio.create_task(_load_text(setup, service)), asyncio.create_task(_ping(client))]
    try:
        return await _until_stopped(service, reader, helpers[0], stop)
    finally:
        server.close()
        for task in helpers:
            task.cancel()
        await runner.cleanup()
        client.close()
        await _end_core(core)
        if service.grammars is not None:
            await service.grammars.close()
        service.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=_BACKLOG)
    except OSError as error:
        raise InvalidSpec(f"port: cannot listen on {host}:{port}: {error.strerror}", field="port") from error


async def _start_core(setup: EngineSetup) -> tuple[Process, CoreClient]:
    ours, theirs = socket.socketpair()
    with theirs:
        command = ("-m", "forebay.engine", "core", "--descriptor", str(theirs.fileno()))
        options = ("--kernels", setup.compute.kernels, "--log-level", setup.resolved.config.log_level)
        core = await asyncio.create_subprocess_exec(sys.executable, *command, *options, pass_fds=[theirs.fileno()])
    channel = await open_api_channel(ours)
    channel.send(_start_message(setup))
    return core, CoreClient(channel, time.monotonic)


def _start_message(setup: EngineSetup) -> Start:
    config = setup.resolved.config
    return Start(
        model=str(setup.model_path),
        values=setup.compute.values,
        weights=setup.compute.weights,
        matmul=setup.compute.matmul,
        kv=setup.compute.kv,
        kernels=setup.compute.kernels,
        batch_invariant=setup.compute.batch_invariant,
        threads=config.threads,
        groups=tuple((group.name, group.pages, group.window_tokens) for group in setup.groups),
        page_tokens=config.page_tokens,
        prefix_reuse=config.prefix_reuse,
        max_running=config.max_running,
        max_waiting=config.max_waiting,
        max_batch_tokens=config.max_batch_tokens,
        max_prompt_tokens=config.max_prompt_tokens,
        max_sequence_tokens=setup.resolved.max_sequence_tokens,
        admission=config.admission,
        draft_model=str(setup.draft_path or ""),
        draft_tokens=config.draft_tokens,
    )


async def _open_port(runner: web.AppRunner, service: Service, listener: socket.socket) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    server = runner.server
    if server is None:
        raise InvalidSpec("the server is not set up", field="port")

    def connection() -> GuardedConnection:
        return GuardedConnection(
            server,
            head_seconds=service.config.head_seconds,
            on_malformed=service.metrics.malformed.inc,
            loop=loop,
            keepalive_timeout=service.config.keepalive_seconds,
            access_log=None,
            auto_decompress=False,
        )

    return await loop.create_server(connection, sock=listener)


async def _load_text(setup: EngineSetup, service: Service) -> None:
    def load() -> tuple[TextCodec, tuple[int, ...], Pooling | None]:
        source = read_tokenizer(setup.model_path)
        return TextCodec(source), source.eos_ids, read_pooling(setup.model_path)

    codec, eos_ids, service.pooling = await asyncio.to_thread(load)
    service.set_text(codec, eos_ids, setup.model.vocab)
    if eos_ids:
        config = service.config
        compiler = Compiler(
            CompilerModel(setup.model_path, setup.model.vocab, eos_ids),
            CompileLimits(config.grammar_seconds, config.grammar_cache_bytes),
            time.monotonic,
        )
        service.set_grammars(Grammars(compiler, service.client.send, config.grammar_cache_bytes))


async def _ping(client: CoreClient) -> None:
    while True:
        if client.is_loaded:
            client.ping()
        await asyncio.sleep(_PING_INTERVAL_S)


class _StopSignals:
    """Counts SIGTERM and SIGINT: the first drains, the second stops at once."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._note)

    def _note(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


async def _until_stopped(
    service: Service, reader: "asyncio.Task[str]", text: "asyncio.Task[None]", stop: _StopSignals
) -> int:
    first = asyncio.create_task(stop.first.wait())
    await asyncio.wait({reader, first, text}, return_when=asyncio.FIRST_COMPLETED)
    if text.done():
        text.result()
        await asyncio.wait({reader, first}, return_when=asyncio.FIRST_COMPLETED)
    first.cancel()
    if reader.done():
        return await _core_failed(service, reader.result())
    return await _drain(service, reader, stop)


async def _core_failed(service: Service, reason: str) -> int:
    """Every request has been told by now; give their handlers a moment to write it."""
    _log.error("the core failed: %s", reason)
    try:
        await asyncio.wait_for(service.wait_idle(), _FLUSH_S)
    except TimeoutError:
        _log.warning("%d requests did not end", service.open_requests)
    return EXIT_FAULT


async def _drain(service: Service, reader: "asyncio.Task[str]", stop: _StopSignals) -> int:
    service.start_drain()
    grace_s = service.config.drain_seconds
    _log.info("draining: %d requests are open, grace %g s", service.open_requests, grace_s)
    second, idle = asyncio.create_task(stop.second.wait()), asyncio.create_task(service.wait_idle())
    await asyncio.wait({reader, second, idle}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    second.cancel()
    idle.cancel()
    if reader.done():
        return await _core_failed(service, reader.result())
    if service.open_requests:
        why = "second signal" if stop.second.is_set() else "the grace is over"
        _log.warning("%s: ending %d open requests", why, service.open_requests)
        service.client.end_all("the engine is shutting down")
    if stop.second.is_set():
        return EXIT_SECOND_SIGNAL
    _log.info("drained")
    return 0


async def _end_core(core: Process) -> None:
    """Closing the channel ends the core after its step; one that does not end is killed."""
    try:
        async with asyncio.timeout(_CORE_EXIT_S):
            await core.wait()
    except TimeoutError:
        core.kill()
        await core.wait()
