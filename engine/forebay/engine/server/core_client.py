"""The API process's view of the core: requests in, tokens out, and whether the core lives and moves.

One `Group` holds all sequences of one HTTP request; leaving it in any way (answer sent, client gone, error) aborts
what still runs. `CoreClient.run` is the only reader of the channel. When the core ends, readiness is gone before
any request hears of it. Single-threaded: everything happens on the event loop.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from forebay.contract.errors import EngineFault, ForebayError, InvalidRequest, Overloaded
from forebay.engine.channel import ApiChannel, ChannelClosed
from forebay.engine.messages import (
    Abort,
    Add,
    Drain,
    Fault,
    GrammarBuilt,
    Load,
    Logprobs,
    Message,
    Ping,
    Ready,
    Refused,
    SpeculationCounts,
    Step,
)
from forebay.engine.request import FinishReason
from forebay.engine.server.errors import Unavailable


def _ignore(*_: object) -> None:
    """Until a part listens."""


@dataclass(frozen=True, slots=True)
class End:
    """How a sequence ended."""

    reason: FinishReason
    generated_tokens: int
    cached_tokens: int
    message: str
    speculation: SpeculationCounts | None = None
    vector: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """New tokens of one sequence of a group, and its end when it has come. `logprobs` is parallel or empty."""

    index: int
    tokens: Sequence[int]
    end: End | None
    logprobs: Sequence[Logprobs] = ()


class Group:
    """The sequences of one HTTP request. A context manager: what still runs when it closes is aborted."""

    def __init__(self, client: "CoreClient") -> None:
        self._client = client
        self._live: dict[int, int] = {}
        self._tokens: dict[int, list[int]] = {}
        self._logprobs: dict[int, list[Logprobs]] = {}
        self._ended: deque[tuple[int, End]] = deque()
        self._error: ForebayError | None = None
        self._wake: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.forget(self, tuple(self._live))
        self._live.clear()

    @property
    def size(self) -> int:
        """Sequences that have not ended."""
        return len(self._live)

    def submit(self, index: int, make: Callable[[int], Add]) -> None:
        """Send one sequence; `make` gets its request id. Raises `EngineFault` when the core is gone."""
        request_id = self._client.register(self)
        self._live[request_id] = index
        self._client.send_add(make(request_id))

    def stop(self, index: int) -> None:
        """Tell the core to end one sequence; its end still comes, with the final counts."""
        for request_id, place in self._live.items():
            if place == index:
                self._client.send_abort(request_id)

    async def next(self) -> list[Progress]:
        """What has come since the last call, waiting for something. Raises what the core refused or died of."""
        while not (self._tokens or self._ended or self._error):
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        if self._error is not None:
            raise self._error
        tokens, self._tokens = self._tokens, {}
        logprobs, self._logprobs = self._logprobs, {}
        ends = dict(self._ended)
        self._ended.clear()
        places = sorted({*tokens, *ends}) if ends else sorted(tokens)
        return [Progress(place, tokens.get(place, ()), ends.get(place), logprobs.get(place, ())) for place in places]

    def put_token(self, request_id: int, token: int, logprobs: Logprobs | None) -> None:
        """A token of a live sequence; called by the client."""
        index = self._live[request_id]
        self._tokens.setdefault(index, []).append(token)
        if logprobs is not None:
            self._logprobs.setdefault(index, []).append(logprobs)
        self._notify()

    def put_end(self, request_id: int, end: End) -> None:
        """The end of a live sequence; called by the client."""
        self._ended.append((self._live.pop(request_id), end))
        self._notify()

    def fail(self, error: ForebayError) -> None:
        """End the whole group with an error; called by the client."""
        self._error = self._error or error
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class CoreClient:
    """Requests to and answers from one core process."""

    def __init__(self, channel: ApiChannel, now_s: Callable[[], float]) -> None:
        self._channel = channel
        self._now_s = now_s
        self._ids = itertools.count(1)
        self._groups: dict[int, Group] = {}
        self._pings = 0
        self._pinged_s = now_s()
        self._last_answer_s = now_s()
        self._moved_s = now_s()
        self.load_seconds: float | None = None
        self.load: Load | None = None
        self.fault: str | None = None
        self.on_grammar: Callable[[GrammarBuilt], None] = _ignore
        self.on_fault: Callable[[str], None] = _ignore
        self.on_loaded: Callable[[float], None] = _ignore
        self.on_started: Callable[[float, int], None] = _ignore
        self._sent_s: dict[int, float] = {}

    @property
    def is_loaded(self) -> bool:
        """Whether the model is loaded and the core has not failed."""
        return self.load_seconds is not None and self.fault is None

    @property
    def open_sequences(self) -> int:
        """Sequences that some HTTP request still waits for."""
        return len(self._groups)

    def group(self) -> Group:
        """A new group for one HTTP request."""
        return Group(self)

    def register(self, group: Group) -> int:
        """A fresh request id whose tokens go to `group`."""
        if self.fault is not None:
            raise EngineFault(self.fault)
        request_id = next(self._ids)
        self._groups[request_id] = group
        return request_id

    def send(self, message: Message) -> None:
        """Send a message of another part to the core."""
        self._channel.send(message)

    def send_add(self, add: Add) -> None:
        """Send a registered sequence to the core."""
        self._sent_s[add.request_id] = self._now_s()
        self._channel.send(add)

    def forget(self, group: Group, request_ids: tuple[int, ...]) -> None:
        """Stop listening for these sequences and tell the core to end them."""
        mine = tuple(request_id for request_id in request_ids if self._groups.get(request_id) is group)
        for request_id in mine:
            del self._groups[request_id]
            self._sent_s.pop(request_id, None)
        if mine:
            self._channel.send(Abort(mine))

    def send_abort(self, request_id: int) -> None:
        """Ask the core to end one sequence whose end is still wanted."""
        self._channel.send(Abort((request_id,)))

    def drain(self) -> None:
        """Tell the core to take no new sequences."""
        self._channel.send(Drain())

    def ping(self) -> None:
        """Ask the core for a sign of life; `stalled_s` shows when none comes."""
        if self._pings == 0 or (self.load is not None and self.load.answered >= self._pings):
            self._pings += 1
            self._pinged_s = self._now_s()
            self._channel.send(Ping(self._pings))

    def stalled_s(self) -> float:
        """Seconds since the core last answered, or since it last made a step while work waits, whichever is longer."""
        now_s = self._now_s()
        waiting_for_answer = self._pings > (self.load.answered if self.load else 0)
        silent_s = now_s - max(self._last_answer_s, self._pinged_s) if waiting_for_answer else 0.0
        has_work = self.load is not None and self.load.running + self.load.waiting > 0
        return max(silent_s, now_s - self._moved_s if has_work else 0.0)

    async def run(self) -> str:
        """Read the channel until the core ends; returns the reason after every request has been told."""
        reason = "the core process ended"
        try:
            while self.fault is None:
                for message in await self._channel.receive():
                    self._take(message)
            reason = self.fault
        except ChannelClosed:
            pass
        self.fault = reason
        self.on_fault(reason)
        self._fail_all(EngineFault(f"the engine failed: {reason}"))
        return reason

    def end_all(self, message: str) -> None:
        """End every request with `Unavailable`; the core is told to stop their sequences."""
        ids = tuple(self._groups)
        self._fail_all(Unavailable(message, code="draining"))
        self._channel.send(Abort(ids))

    def close(self) -> None:
        """Close the channel; the core sees it and ends."""
        self._channel.close()

    def _fail_all(self, error: ForebayError) -> None:
        groups, self._groups = set(self._groups.values()), {}
        self._sent_s.clear()
        for group in groups:
            group.fail(error)

    def _take(self, message: object) -> None:
        match message:
            case Step():
                self._step(message)
            case Load():
                self._note_load(message)
            case Refused():
                self._refused(message)
            case GrammarBuilt():
                self.on_grammar(message)
            case Ready(load_s):
                self.load_seconds = load_s
                self._last_answer_s = self._moved_s = self._now_s()
                self.on_loaded(load_s)
            case Fault(text):
                self.fault = text
            case _:
                self.fault = f"the core sent an unexpected {type(message).__name__}"

    def _note_load(self, load: Load) -> None:
        now_s = self._now_s()
        has_work = load.running + load.waiting > 0
        if self.load is None or load.steps != self.load.steps or not has_work:
            self._moved_s = now_s
        self._last_answer_s = now_s
        self.load = load

    def _step(self, step: Step) -> None:
        groups = self._groups
        for request_id, cached_tokens in step.started:
            if (sent_s := self._sent_s.pop(request_id, None)) is not None:
                self.on_started(self._now_s() - sent_s, cached_tokens)
        logprobs = step.logprobs or itertools.repeat(None)
        for request_id, token, entry in zip(step.request_ids, step.tokens, logprobs, strict=False):
            group = groups.get(request_id)
            if group is not None:
                group.put_token(request_id, token, entry)
        if step.ended_ids:
            self._ends(step)

    def _ends(self, step: Step) -> None:
        speculation, vectors = dict(step.speculation), dict(step.vectors)
        for place, request_id in enumerate(step.ended_ids):
            group = self._groups.pop(request_id, None)
            self._sent_s.pop(request_id, None)
            if group is not None:
                end = End(
                    FinishReason(step.ended_reasons[place]),
                    step.ended_generated_tokens[place],
                    step.ended_cached_tokens[place],
                    step.ended_messages[place],
                    speculation.get(place),
                    vectors.get(place, ()),
                )
                group.put_end(request_id, end)

    def _refused(self, refused: Refused) -> None:
        group = self._groups.pop(refused.request_id, None)
        self._sent_s.pop(refused.request_id, None)
        if group is None:
            return
        if refused.after_s > 0:
            group.fail(Overloaded(refused.message, after_s=refused.after_s))
        else:
            group.fail(InvalidRequest(refused.message, param=refused.param or None, status=refused.status))
