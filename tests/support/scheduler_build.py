"""Builders and a driver for scheduler tests: requests with defaults, and a loop with chosen steps in flight."""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from forebay.engine.limits import PoolGroup, SchedulerLimits
from forebay.engine.plan import StepEvents, StepPlan, TokenLogprobs
from forebay.engine.request import Ended, NewRequest, SamplingParams
from forebay.engine.scheduler import Scheduler
from script_runner import ScriptHandle, ScriptRunner


def full(pages: int) -> tuple[PoolGroup, ...]:
    """One layer group that sees everything."""
    return (PoolGroup("full", pages),)


def hybrid(full_pages: int, sliding_pages: int, window_tokens: int) -> tuple[PoolGroup, ...]:
    """A group that sees everything beside one with a window."""
    return (PoolGroup("full", full_pages), PoolGroup("sliding", sliding_pages, window_tokens))


LIMITS = SchedulerLimits(
    groups=full(64),
    page_tokens=4,
    max_running=8,
    max_waiting=16,
    max_batch_tokens=32,
    max_prompt_tokens=100,
    max_sequence_tokens=128,
)
VOCABULARY = 50
REQUEST = NewRequest(
    request_id=1,
    prompt=tuple(range(10)),
    sampling=SamplingParams(),
    max_new_tokens=6,
    stop_token_ids=frozenset(),
    ignore_eos=False,
    tenant="",
    priority=0,
    deadline_s=1e9,
)


def request(request_id: int, prompt: Iterable[int] = range(10), **changes: object) -> NewRequest:
    """A request of 10 prompt tokens and 6 generated ones, unless changed."""
    return replace(REQUEST, request_id=request_id, prompt=tuple(prompt), **changes)  # type: ignore[arg-type]  # any field


class Drive:
    """A scheduler with a script runner; collects tokens and ends by request."""

    def __init__(
        self,
        limits: SchedulerLimits = LIMITS,
        fault_step: int | None = None,
        acceptance: float = 0.5,
        eagerness: float = 1.0,
    ) -> None:
        self.limits = limits
        self.scheduler = Scheduler(limits, b"model")
        windows = [group.window_tokens for group in limits.groups]
        self.runner = ScriptRunner(limits.page_tokens, VOCABULARY, fault_step, windows, acceptance, eagerness)
        self.launched: deque[ScriptHandle] = deque()
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TokenLogprobs | None]] = {}
        self.started: dict[int, int] = {}
        self.ended: dict[int, Ended] = {}
        self.now_s = 0.0

    def add(self, new: NewRequest) -> None:
        """Add a request; an immediate end is collected."""
        self.collect_ended(filter(None, [self.scheduler.add(new, self.now_s)]))

    def abort(self, request_id: int) -> list[Ended]:
        """Abort and collect."""
        ended = self.scheduler.abort(request_id, self.now_s)
        self.collect_ended(ended)
        return ended

    def expire(self, now_s: float) -> None:
        """Move time on and collect what expires."""
        self.now_s = now_s
        self.collect_ended(self.scheduler.expire(now_s))

    def launch(self) -> StepPlan | None:
        """Plan and launch one step."""
        plan = self.scheduler.plan()
        if plan is not None:
            self.launched.append(self.runner.launch(plan))
        return plan

    def commit(self) -> StepEvents:
        """Commit the oldest step."""
        events = self.scheduler.commit(self.launched.popleft().result(), self.now_s)
        for request_id, cached_tokens in events.started:
            assert request_id not in self.started, "a request started twice"
            assert request_id not in self.ended, "a start came after the end"
            self.started[request_id] = cached_tokens
        logprobs = events.logprobs or (None,) * len(events.tokens)
        for request_id, token, logprob in zip(events.request_ids, events.tokens, logprobs, strict=True):
            assert request_id not in self.ended, "a token came after the end"
            assert request_id in self.started, "a token came before the start"
            self.tokens.setdefault(request_id, []).append(token)
            self.logprobs.setdefault(request_id, []).append(logprob)
        self.collect_ended(events.ended)
        return events

    def collect_ended(self, ended: Iterable[Ended]) -> None:
        """Note terminal events; a second one for the same request fails."""
        for event in ended:
            assert event.request_id not in self.ended, f"request {event.request_id} ended twice"
            assert event.cached_tokens == self.started.get(event.request_id, event.cached_tokens)
            self.ended[event.request_id] = event

    def step(self) -> StepPlan | None:
        """One step from plan to commit."""
        plan = self.launch()
        if plan is not None:
            self.commit()
        return plan

    def run(self, depth: int = 1, steps: int = 10_000) -> None:
        """Turn until idle with up to `depth` steps in flight; fails when that takes more than `steps` turns."""
        for _ in range(steps):
            while len(self.launched) < depth and self.launch() is not None:
                pass
            if not self.launched:
                assert self.scheduler.idle, "work is left and nothing is planned"
                return
            self.commit()
        raise AssertionError(f"not idle after {steps} steps")

    def assert_at_rest(self) -> None:
        """Everything given out is back."""
        load = self.scheduler.load()
        assert self.scheduler.idle
        assert (load.running, load.waiting, load.draining_requests) == (0, 0, 0)
        for pool in load.pools:
            assert (pool.used, pool.held, pool.free) == (0, 0, pool.total)
        assert load.free_slots == self.limits.max_running
        assert load.pending_prefill_tokens == 0
