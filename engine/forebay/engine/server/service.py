"""What every handler shares: configuration, tokenizer, core client, limits, metrics, and whether work is accepted.

Readiness is computed here from facts, never stored: loaded, not draining, the core answers and moves while work waits.
Encoding of long prompts runs in a thread so that streams of other clients go on. Owned by `process.py`.
"""

import asyncio
import itertools
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forebay.contract.clock import Clock
from forebay.contract.errors import InvalidRequest, Overloaded
from forebay.contract.wire import LoadReport
from forebay.engine.keys import KEYS_BY_NAME, EngineConfig
from forebay.engine.loader.checkpoint import file_digest
from forebay.engine.loader.metadata import Pooling
from forebay.engine.record import Identity, text_digest
from forebay.engine.request import DraftKind, Speculation
from forebay.engine.resolve import Resolved
from forebay.engine.server.core_client import CoreClient
from forebay.engine.server.errors import Unavailable
from forebay.engine.server.events import EventLog
from forebay.engine.server.limits import RequestLimits
from forebay.engine.server.metrics import EngineMetrics
from forebay.engine.server.openai import Prompt
from forebay.engine.server.residents import resident_bytes
from forebay.engine.structured.request import StructuredSettings, Tool
from forebay.engine.structured.service import Grammars
from forebay.engine.text import TextCodec

INLINE_CHARS = 2048
READING_REQUESTS = 256
"""Requests that may be open beside those that run or wait: their bodies are being read or encoded."""
_ENCODER_THREADS = 2
_PRIVATE_KEYS = frozenset({"model", "draft_model", "host", "port", "api_keys_file"})
"""Settings that a record does not show: paths and addresses of this machine."""


@dataclass(frozen=True, slots=True)
class LoadedText:
    """The tokenizer of the model, its end tokens, and the limits that follow from its vocabulary."""

    codec: TextCodec
    eos_ids: tuple[int, ...]
    limits: RequestLimits


class Service:
    """The engine as its HTTP handlers see it."""

    def __init__(
        self, resolved: Resolved, client: CoreClient, metrics: EngineMetrics, engine_id: str, clock: Clock, model: Path
    ) -> None:
        self.resolved = resolved
        self.config = resolved.config
        self.client = client
        self.metrics = metrics
        self.clock = clock
        self.events = EventLog(clock.wall_s)
        self.pooling: Pooling | None = None
        self.started_s = int(clock.wall_s())
        self.events.note("started", config_digest=resolved.digest)
        self.draining = False
        self.open_requests = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.text: LoadedText | None = None
        self.grammars: Grammars | None = None
        self._engine_id = engine_id
        self._model_path = model
        self._answers = itertools.count(1)
        self._answer_prefix = secrets.token_hex(6)
        self._identity: asyncio.Future[Identity] | None = None
        client.on_started = metrics.started
        client.on_fault = self.note_fault
        client.on_loaded = self.note_loaded
        self._encoders = ThreadPoolExecutor(_ENCODER_THREADS, thread_name_prefix="encode")

    def set_text(self, codec: TextCodec, eos_ids: tuple[int, ...], vocabulary: int) -> None:
        """The tokenizer is loaded; `vocabulary` is the model's, which token ids must stay below."""
        config = self.config
        limits = RequestLimits(
            served_names=config.served_names,
            max_prompt_tokens=config.max_prompt_tokens,
            max_prompt_chars=config.max_prompt_tokens * codec.longest_token_chars,
            max_tokens=config.max_tokens,
            default_max_tokens=config.default_max_tokens,
            max_sequence_tokens=self.resolved.max_sequence_tokens,
            max_n=config.max_n,
            max_stop=config.max_stop,
            vocabulary=min(vocabulary, codec.vocabulary_size),
            structured=StructuredSettings.of(config),
            max_top_logprobs=config.max_top_logprobs,
            max_logit_bias=config.max_logit_bias,
            draft_tokens=config.draft_tokens,
            speculation=_speculation(config),
            may_draft=bool(config.draft_model),
            may_record=config.record != "off",
        )
        self.text = LoadedText(codec, eos_ids, limits)
        self.events.note("tokenizer loaded", vocabulary=codec.vocabulary_size)

    def set_grammars(self, grammars: Grammars) -> None:
        """Structured output is possible; the core's answers about grammars go there."""
        self.grammars = grammars
        self.client.on_grammar = grammars.note_built

    def note_loaded(self, seconds: float) -> None:
        """The core has loaded the model."""
        self.events.note("model loaded", seconds=round(seconds, 3))

    def note_fault(self, reason: str) -> None:
        """The core has ended."""
        self.events.note("core failed", reason=reason)
        if self.grammars is not None:
            self.grammars.fail(reason)

    def unready_reason(self) -> str | None:
        """Why the engine is not ready, or None when it is."""
        if self.client.fault is not None:
            return "failed"
        if self.draining:
            return "draining"
        if not self.client.is_loaded or self.text is None:
            return "loading"
        stalled_s = self.client.stalled_s()
        if stalled_s > self.config.stall_seconds:
            return f"stalled for {stalled_s:.0f} s"
        return None

    def loaded(self) -> LoadedText:
        """The tokenizer and limits when new work is accepted; raises `Unavailable` otherwise."""
        if self.client.fault is not None:
            raise Unavailable("the engine has failed", code="engine_fault")
        if self.draining:
            raise Unavailable("the engine is draining", code="draining")
        if self.text is None or not self.client.is_loaded:
            raise Unavailable("the model is still loading", code="loading")
        return self.text

    def start_drain(self) -> None:
        """Readiness goes first; then new work is refused and what runs goes on."""
        if not self.draining:
            self.events.note("draining", open_requests=self.open_requests)
        self.draining = True
        self.client.drain()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Counts one completion request as open; raises `Overloaded` when there are more than could ever be queued."""
        if self.open_requests >= self.config.max_running + self.config.max_waiting + READING_REQUESTS:
            raise Overloaded(f"{self.open_requests} requests are open already", after_s=1.0)
        self.open_requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.open_requests -= 1
            if self.open_requests == 0:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Returns when no completion request is open."""
        await self._idle.wait()

    def answer_id(self, prefix: str) -> str:
        """A fresh id for an answer."""
        return f"{prefix}-{self._answer_prefix}{next(self._answers):08x}"

    def call_id(self) -> str:
        """A fresh id for a tool call."""
        return f"call_{secrets.token_hex(12)}"

    def seed(self) -> int:
        """A seed for a request that named none: 63 bits from the system."""
        return secrets.randbits(63)

    async def encode(self, prompt: Prompt, tools: Sequence[Tool] = ()) -> list[int]:
        """Token ids of any prompt; `tools` are shown to the chat template."""
        codec = self.loaded().codec
        if isinstance(prompt, str):
            return await self._encode(len(prompt), lambda: codec.encode_text(prompt))
        turns = [message for message in prompt if not isinstance(message, int)]
        if not turns:
            return [token for token in prompt if isinstance(token, int)]
        messages = [turn.to_template() for turn in turns]
        shown = [tool.document() for tool in tools]
        chars = sum(turn.chars for turn in turns) + (INLINE_CHARS if tools else 0)
        return await self._encode(chars, lambda: codec.encode_chat(messages, shown))

    async def _encode(self, chars: int, encode: Callable[[], list[int]]) -> list[int]:
        if chars <= INLINE_CHARS:
            return encode()
        return await asyncio.get_running_loop().run_in_executor(self._encoders, encode)

    async def identity(self) -> Identity:
        """Digests of what this engine runs, computed once: the weights are read whole for theirs."""
        if self._identity is None:
            self._identity = asyncio.get_running_loop().run_in_executor(self._encoders, self._identify)
        return await asyncio.shield(self._identity)

    def _identify(self) -> Identity:
        codec = self.loaded().codec
        values = {name: setting.value for name, setting in self.resolved.settings.items()}
        return Identity(
            model_digest=file_digest(self._model_path),
            tokenizer_digest=codec.digest,
            template_digest=text_digest(codec.template_source),
            config_digest=self.resolved.digest,
            config={name: values[name] for name in KEYS_BY_NAME if name not in _PRIVATE_KEYS},
        )

    def load_report(self) -> LoadReport:
        """The engine's load for routers; zeros until the core has reported."""
        load = self.client.load
        return LoadReport(
            engine_id=self._engine_id,
            running=load.running if load else 0,
            waiting=load.waiting if load else 0,
            pending_prefill_tokens=load.pending_prefill_tokens if load else 0,
            kv_pages_used=load.pages_used + load.pages_held if load else 0,
            kv_pages_total=sum(self.resolved.pages),
            max_running=self.config.max_running,
            prefill_tokens_per_s=load.prefill_tokens_per_s if load else 0.0,
            decode_tokens_per_s=load.decode_tokens_per_s if load else 0.0,
            draining=self.draining,
        )

    def update_gauges(self) -> None:
        """Bring gauges that mirror state up to date before a scrape."""
        self.metrics.ready.set(float(self.unready_reason() is None))
        self.metrics.draining.set(float(self.draining))
        self.metrics.open_requests.set(self.open_requests)
        self.metrics.load_s.set(self.client.load_seconds or 0.0)
        for process, resident in resident_bytes().items():
            self.metrics.resident.set(resident, process)
        if self.client.load is not None:
            self.metrics.take_load(self.client.load)
        if self.grammars is not None:
            self.metrics.grammars.set(self.grammars.used, "used")
            self.metrics.grammars.set(self.grammars.held - self.grammars.used, "cached")
            self.metrics.compilations.set(self.grammars.compilations)
            self.metrics.compile_s.set(self.grammars.compile_s)

    def close(self) -> None:
        """Stop the encoder threads."""
        self._encoders.shutdown(wait=False, cancel_futures=True)


def _speculation(config: EngineConfig) -> Speculation | None:
    """What requests get that do not choose."""
    return None if config.speculation == "off" else Speculation(DraftKind(config.speculation), config.draft_tokens)


def check_length(
    prompt_tokens: int, prompt_field: str, asked: int | None, asked_field: str, limits: RequestLimits
) -> int:
    """Tokens an answer may have; raises `InvalidRequest` naming the field when prompt or answer cannot fit."""
    if prompt_tokens < 1:
        raise InvalidRequest(f"{prompt_field}: has no tokens", param=prompt_field)
    if prompt_tokens > limits.max_prompt_tokens:
        raise InvalidRequest(
            f"{prompt_field}: has {prompt_tokens} tokens; this engine takes at most {limits.max_prompt_tokens}",
            param=prompt_field,
        )
    room = min(limits.max_sequence_tokens - prompt_tokens, limits.max_tokens)
    if asked is None:
        return min(limits.default_max_tokens, room)
    if asked > room:
        raise InvalidRequest(
            f"{asked_field}: {prompt_tokens} prompt tokens leave room for {room} tokens, {asked} were asked for",
            param=asked_field,
        )
    return asked
