"""The core process: one loop that owns the scheduler and the runner.

A turn takes messages, ends what is overdue, plans and launches a step, and commits the oldest step once two are in
flight or nothing is left to plan. `CoreLoop` has no process in it, so tests drive it with any runner, port and clock.
The process ends when the API process goes away, and with a `Fault` when a step fails: nothing is served after that.
"""

import logging
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from forebay.contract.errors import Bug, EngineFault, ForebayError, InvalidRequest, Overloaded
from forebay.engine.channel import ChannelClosed, CoreChannel
from forebay.engine.limits import AdmissionPolicy, PoolGroup, SchedulerLimits
from forebay.engine.messages import (
    Abort,
    Add,
    Drain,
    DropGrammar,
    Fault,
    Grammar,
    GrammarBuilt,
    Load,
    Message,
    Ping,
    Ready,
    Refused,
    SpeculationCounts,
    Start,
    Step,
)
from forebay.engine.plan import Runner, StepEvents, StepHandle
from forebay.engine.request import Ended, NewRequest
from forebay.engine.scheduler import Scheduler

IDLE_WAIT_S = 1.0
_BUILDING_WAIT_S = 0.005
LOAD_INTERVAL_S = 0.05
_RATE_WINDOW_S = 5.0
_RATE_SAMPLE_S = 0.25
_NO_EVENTS = StepEvents((), (), ())
_ADMISSION = {
    "max_utilization": AdmissionPolicy.MAX_UTILIZATION,
    "guaranteed_no_evict": AdmissionPolicy.GUARANTEED_NO_EVICT,
}

_log = logging.getLogger(__name__)


class Port(Protocol):
    """The core's end of the channel."""

    def receive(self, timeout_s: float) -> list[Message]:
        """Messages that have come, waiting up to `timeout_s` for the first."""

    def send(self, message: Message) -> None:
        """Send one message."""


class Grammars(Protocol):
    """The core's compiled grammars; see `GrammarStore`."""

    @property
    def building(self) -> bool:
        """Whether an end of a build is still to be read with `finished`."""

    def put(self, key: str, backend: str, payload: str, reasoning_end: tuple[int, ...] = ()) -> None:
        """Start building a grammar."""

    def finished(self) -> list[tuple[str, str]]:
        """Keys whose building ended since the last call, with the problem or an empty text."""

    def drop(self, key: str) -> None:
        """Forget a grammar."""


class Rates:
    """Prefill and decode tokens a second over the last seconds, 0 before the first step."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def note(self, now_s: float, prefill_tokens: int, decode_tokens: int) -> tuple[float, float]:
        """Take in the counters as they stand and return both rates."""
        samples = self._samples
        if not samples or now_s - samples[-1][0] >= _RATE_SAMPLE_S:
            samples.append((now_s, prefill_tokens, decode_tokens))
        while len(samples) > 2 and now_s - samples[1][0] >= _RATE_WINDOW_S:
            samples.popleft()
        span_s = max(now_s - samples[0][0], _RATE_SAMPLE_S)
        return (prefill_tokens - samples[0][1]) / span_s, (decode_tokens - samples[0][2]) / span_s


class CoreLoop:
    """Scheduler, runner and channel of one engine, one turn at a time."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, port: Port, now_s: Callable[[], float], grammars: Grammars
    ) -> None:
        self._scheduler = scheduler
        self._grammars = grammars
        self._runner = runner
        self._port = port
        self._now_s = now_s
        self._in_flight: deque[StepHandle] = deque()
        self._ended: list[Ended] = []
        self._rates = Rates()
        self._answered = 0
        self._load_sent_s = float("-inf")
        self._load_due = True

    def turn(self) -> None:
        """One turn; waits for messages only when there is nothing to compute. Raises `EngineFault` on a failed step."""
        for message in self._port.receive(self._wait_s()):
            self._take(message)
        for key, problem in self._grammars.finished():
            self._port.send(GrammarBuilt(key, problem))
        self._ended += self._scheduler.expire(self._now_s())
        plan = self._scheduler.plan()
        if plan is not None:
            self._in_flight.append(self._runner.launch(plan))
        events = _NO_EVENTS
        if self._in_flight and (plan is None or len(self._in_flight) >= self._scheduler.limits.max_in_flight):
            events = self._commit()
        self._report(events)

    def _wait_s(self) -> float:
        if not self._scheduler.idle or self._load_due:
            return 0.0
        return _BUILDING_WAIT_S if self._grammars.building else IDLE_WAIT_S

    def _commit(self) -> StepEvents:
        result = self._in_flight.popleft().result()
        if result.fault is not None:
            raise EngineFault(result.fault)
        return self._scheduler.commit(result, self._now_s())

    def _take(self, message: Message) -> None:
        match message:
            case Add():
                self._add(message)
            case Abort(request_ids):
                for request_id in request_ids:
                    self._ended += self._scheduler.abort(request_id, self._now_s())
            case Grammar(key, backend, payload, reasoning_end):
                self._grammars.put(key, backend, payload, reasoning_end)
            case DropGrammar(key):
                self._grammars.drop(key)
            case Drain():
                self._scheduler.drain()
            case Ping(number):
                self._answered = number
            case _:
                raise Bug(f"the core cannot take a {type(message).__name__}")
        self._load_due = True

    def _add(self, add: Add) -> None:
        try:
            ended = self._scheduler.add(_new_request(add), self._now_s())
        except InvalidRequest as error:
            self._port.send(Refused(add.request_id, error.status, error.message, error.param or "", 0.0))
        except Overloaded as error:
            self._port.send(Refused(add.request_id, 429, error.message, "", error.retry.after_s))
        else:
            if ended is not None:
                self._ended.append(ended)

    def _report(self, events: StepEvents) -> None:
        ended: Sequence[Ended] = (*self._ended, *events.ended)
        self._ended = []
        if events.request_ids or events.started or ended:
            self._load_due = True
            self._port.send(_step(events, ended))
        now_s = self._now_s()
        if self._load_due and (self._scheduler.idle or now_s - self._load_sent_s >= LOAD_INTERVAL_S):
            self._port.send(self._load(now_s))
            self._load_due, self._load_sent_s = False, now_s

    def _load(self, now_s: float) -> Load:
        load = self._scheduler.load()
        prefill_rate, decode_rate = self._rates.note(now_s, load.prefill_tokens, load.decode_tokens)
        return Load(
            answered=self._answered,
            running=load.running,
            waiting=load.waiting,
            pending_prefill_tokens=load.pending_prefill_tokens,
            pages_used=load.pages_used,
            pages_held=load.pages_held,
            pages_cached=load.pages_cached,
            pages_total=load.pages_total,
            steps=load.steps,
            prefill_tokens=load.prefill_tokens,
            decode_tokens=load.decode_tokens,
            reused_tokens=load.reused_tokens,
            preemptions=load.preemptions,
            prefill_tokens_per_s=prefill_rate,
            decode_tokens_per_s=decode_rate,
        )


def _step(events: StepEvents, ended: Sequence[Ended]) -> Step:
    """What a commit and the ends of a turn mean to the API process."""
    speculation: list[tuple[int, SpeculationCounts]] = []
    for place, end in enumerate(ended):
        if (report := end.speculation) is not None:
            speculation.append((place, (report.drafted, report.accepted, report.steps, report.histogram)))
    return Step(
        request_ids=events.request_ids,
        tokens=events.tokens,
        ended_ids=tuple(end.request_id for end in ended),
        ended_reasons=tuple(end.reason.value for end in ended),
        ended_generated_tokens=tuple(end.generated_tokens for end in ended),
        ended_cached_tokens=tuple(end.cached_tokens for end in ended),
        ended_messages=tuple(end.message for end in ended),
        logprobs=tuple(None if entry is None else (entry.logprob, entry.top) for entry in events.logprobs),
        speculation=tuple(speculation),
        vectors=tuple((place, end.vector) for place, end in enumerate(ended) if end.vector),
        started=events.started,
    )


def _new_request(add: Add) -> NewRequest:
    return NewRequest(
        request_id=add.request_id,
        prompt=add.prompt,
        sampling=add.sampling,
        max_new_tokens=add.max_new_tokens,
        stop_token_ids=frozenset(add.stop_token_ids),
        ignore_eos=add.ignore_eos,
        tenant=add.tenant,
        priority=add.priority,
        deadline_s=add.deadline_s,
        grammar=add.grammar,
        speculation=add.speculation,
        retention=add.retention,
        kind=add.kind,
    )


def scheduler_limits(start: Start) -> SchedulerLimits:
    """The scheduler's limits of a start message."""
    return SchedulerLimits(
        groups=tuple(PoolGroup(*group) for group in start.groups),
        page_tokens=start.page_tokens,
        max_running=start.max_running,
        max_waiting=start.max_waiting,
        max_batch_tokens=start.max_batch_tokens,
        max_prompt_tokens=start.max_prompt_tokens,
        max_sequence_tokens=start.max_sequence_tokens,
        prefix_reuse=start.prefix_reuse,
        admission=_ADMISSION[start.admission],
    )


def run_core(descriptor: int) -> int:
    """Body of the core process over the socket it inherited; returns the exit code.

    Signals to the process group are the API process's to handle: it ends the core by closing the channel.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = CoreChannel(socket.socket(fileno=descriptor))
    try:
        loop = _build(channel)
        while True:
            loop.turn()
    except ChannelClosed:
        return 0
    except ForebayError as error:
        _log.exception("the core ends: %s", error.message)
        return _report_fault(channel, error.message)
    except Exception as error:  # noqa: BLE001 - the process boundary: clients must hear of any end
        _log.exception("the core ends")
        return _report_fault(channel, f"{type(error).__name__}: {error}")


def _report_fault(channel: CoreChannel, message: str) -> int:
    try:
        channel.send(Fault(message))
    except ChannelClosed:
        _log.warning("the API process is gone too")
    return 1


def _build(channel: CoreChannel) -> CoreLoop:
    # The API process imports this module for its types and must not pay for torch.
    from forebay.engine.loader.checkpoint import read_config, read_tokenizer  # noqa: PLC0415
    from forebay.engine.runner.build import Drafting, build_runner  # noqa: PLC0415
    from forebay.engine.runner.compute import Compute  # noqa: PLC0415
    from forebay.engine.runner.executor import ExecutorSizes  # noqa: PLC0415
    from forebay.engine.structured.store import GrammarStore  # noqa: PLC0415
    from forebay.engine.structured.vocabulary import Vocabulary  # noqa: PLC0415

    began_s = time.monotonic()
    start = _await_start(channel)
    path = Path(start.model)
    compute = Compute(
        values=start.values,
        weights=start.weights,
        matmul=start.matmul,
        kv=start.kv,
        kernels=start.kernels,
        batch_invariant=start.batch_invariant,
        reason="chosen by the API process",
    )
    pages = tuple(count for _, count, _ in start.groups)
    sizes = ExecutorSizes(pages, start.page_tokens, start.max_running, start.max_batch_tokens, start.threads)
    model = read_config(path)
    eos_ids = read_tokenizer(path).eos_ids
    grammars = GrammarStore(lambda: Vocabulary.of_model(path, model.vocab, eos_ids))
    drafting = Drafting(model=Path(start.draft_model) if start.draft_model else None)
    runner = build_runner(path, model, compute, sizes, drafting, grammars.open)
    # One process holds one model, so the prefix cache needs no finer fingerprint than its name and formats.
    formats = (start.model, start.values, start.weights, start.matmul, start.kv, start.kernels)
    fingerprint = "|".join(formats).encode()
    scheduler = Scheduler(scheduler_limits(start), fingerprint)
    channel.send(Ready(time.monotonic() - began_s))
    return CoreLoop(scheduler, runner, channel, time.monotonic, grammars)


def _await_start(channel: CoreChannel) -> Start:
    while True:
        for message in channel.receive(IDLE_WAIT_S):
            if not isinstance(message, Start):
                raise Bug(f"the first message must be Start, not {type(message).__name__}")
            return message
