"""The core's loop without a process: scripted runner, recorded port, a clock that the test moves."""

from collections import deque
from dataclasses import dataclass, field, replace

import pytest

from forebay.contract.errors import Bug, EngineFault
from forebay.engine.core import CoreLoop, Rates
from forebay.engine.limits import SchedulerLimits
from forebay.engine.messages import (
    Abort,
    Add,
    Drain,
    DropGrammar,
    Grammar,
    GrammarBuilt,
    Load,
    Message,
    Ping,
    Ready,
    Refused,
    Step,
)
from forebay.engine.request import SamplingParams
from forebay.engine.scheduler import Scheduler
from scheduler_build import full
from script_runner import ScriptRunner

LIMITS = SchedulerLimits(
    groups=full(32),
    page_tokens=4,
    max_running=4,
    max_waiting=2,
    max_batch_tokens=16,
    max_prompt_tokens=60,
    max_sequence_tokens=64,
)
ADD = Add(1, (5, 6, 7), SamplingParams(seed=9), 6, (), True, "", 0, 1e9)


@dataclass
class RecordedPort:
    """Gives the messages that the test queued, and keeps what the core sends."""

    inbox: deque[Message] = field(default_factory=deque)
    sent: list[Message] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    def receive(self, timeout_s: float) -> list[Message]:
        self.waits_s.append(timeout_s)
        messages = list(self.inbox)
        self.inbox.clear()
        return messages

    def send(self, message: Message) -> None:
        self.sent.append(message)


class ListedGrammars:
    """Builds what it is told to, at once; the key "bad" cannot be built."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self._ended: list[tuple[str, str]] = []

    @property
    def building(self) -> bool:
        return bool(self._ended)

    def put(self, key: str, backend: str, payload: str, reasoning_end: tuple[int, ...] = ()) -> None:
        assert (backend, payload, reasoning_end) == ("llguidance", "{}", (7,))
        self._ended.append((key, "no" if key == "bad" else ""))
        self.kept.append(key)

    def finished(self) -> list[tuple[str, str]]:
        ended, self._ended = self._ended, []
        return ended

    def drop(self, key: str) -> None:
        self.kept.remove(key)


class Bench:
    """A core loop with its port and clock."""

    def __init__(self, fault_step: int | None = None, limits: SchedulerLimits = LIMITS) -> None:
        self.port = RecordedPort()
        self.now_s = 0.0
        runner = ScriptRunner(limits.page_tokens, 100, fault_step)
        self.grammars = ListedGrammars()
        self.loop = CoreLoop(Scheduler(limits, b"test"), runner, self.port, lambda: self.now_s, self.grammars)

    def turns(self, count: int, *messages: Message) -> None:
        """Run turns; `messages` come with the first, and the clock moves 10 ms a turn."""
        self.port.inbox.extend(messages)
        for _ in range(count):
            self.loop.turn()
            self.now_s += 0.01

    def tokens(self, request_id: int) -> list[int]:
        """Tokens sent for one sequence."""
        steps = [message for message in self.port.sent if isinstance(message, Step)]
        return [t for step in steps for i, t in zip(step.request_ids, step.tokens, strict=True) if i == request_id]

    def ends(self) -> dict[int, str]:
        """Reason of every sequence that ended."""
        steps = [message for message in self.port.sent if isinstance(message, Step)]
        return {i: r for step in steps for i, r in zip(step.ended_ids, step.ended_reasons, strict=True)}

    def load(self) -> Load:
        """The last load report."""
        return next(message for message in reversed(self.port.sent) if isinstance(message, Load))


def test_a_sequence_gets_its_tokens_and_one_end_and_the_pool_is_whole_again() -> None:
    bench = Bench()
    bench.turns(12, ADD)
    assert len(bench.tokens(1)) == 6
    assert bench.ends() == {1: "length"}
    assert (bench.load().running, bench.load().pages_used, bench.load().pages_held) == (0, 0, 0)


def test_tokens_do_not_depend_on_company() -> None:
    alone, together = Bench(), Bench()
    alone.turns(12, ADD)
    together.turns(14, replace(ADD, request_id=2, prompt=(8,) * 9, sampling=SamplingParams(seed=3)), ADD)
    assert together.tokens(1) == alone.tokens(1)
    assert together.ends() == dict.fromkeys((1, 2), "length")


def test_an_abort_ends_a_sequence_in_flight_and_overtakes_one_that_has_not_come() -> None:
    bench = Bench()
    bench.turns(3, ADD)
    bench.turns(4, Abort((1, 2)))
    assert bench.ends() == {1: "abort"}
    bench.turns(2, replace(ADD, request_id=2))
    assert bench.ends() == {1: "abort", 2: "abort"}
    assert bench.load().pages_used == 0


def test_a_sequence_that_cannot_fit_is_refused_with_its_field_and_a_full_queue_with_a_time() -> None:
    bench = Bench()
    adds = [replace(ADD, request_id=number) for number in range(2, 12)]
    bench.turns(1, replace(ADD, prompt=(1,) * 61), *adds)
    refused = [message for message in bench.port.sent if isinstance(message, Refused)]
    assert (refused[0].status, refused[0].param, refused[0].after_s) == (400, "prompt", 0.0)
    assert {message.status for message in refused[1:]} == {429}
    assert all(message.after_s >= 1 for message in refused[1:])


def test_a_deadline_ends_a_sequence_and_a_drain_refuses_new_ones() -> None:
    bench = Bench()
    bench.turns(3, replace(ADD, deadline_s=0.015, max_new_tokens=50))
    assert bench.ends() == {1: "timeout"}
    bench.turns(2, Drain(), replace(ADD, request_id=2))
    assert [message.request_id for message in bench.port.sent if isinstance(message, Refused)] == [2]


def test_a_failed_step_raises_instead_of_ending_sequences_one_by_one() -> None:
    bench = Bench(fault_step=2)
    with pytest.raises(EngineFault):
        bench.turns(6, ADD)
    assert bench.ends() == {}


def test_an_idle_core_waits_for_messages_and_a_busy_one_does_not() -> None:
    bench = Bench()
    bench.turns(2)
    assert bench.port.waits_s[-1] > 0
    bench.turns(3, ADD)
    assert bench.port.waits_s[-2:] == [0.0, 0.0]


def test_grammars_are_built_told_of_and_dropped() -> None:
    bench = Bench()
    bench.turns(2, *(Grammar(key, "llguidance", "{}", (7,)) for key in ("good", "bad")), DropGrammar("bad"))
    told = [message for message in bench.port.sent if isinstance(message, GrammarBuilt)]
    assert told == [GrammarBuilt("good", ""), GrammarBuilt("bad", "no")]
    assert bench.grammars.kept == ["good"]


def test_a_ping_is_answered_with_its_number() -> None:
    bench = Bench()
    bench.turns(2, Ping(7))
    assert bench.load().answered == 7


def test_a_message_that_only_the_core_sends_is_a_bug() -> None:
    bench = Bench()
    with pytest.raises(Bug, match="Ready"):
        bench.turns(1, Ready(1.0))


def test_rates_are_zero_at_first_and_follow_the_last_seconds() -> None:
    rates = Rates()
    assert rates.note(0.0, 0, 0) == (0.0, 0.0)
    assert rates.note(1.0, 100, 10) == (100.0, 10.0)
    for second in range(2, 20):
        latest = rates.note(float(second), 100, 10 * second)
    assert latest[0] == 0.0
    assert latest[1] == pytest.approx(10.0)
