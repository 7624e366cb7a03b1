"""Schedulers full of running rows and steps without a model, for measuring what planning and committing cost."""

import time
from collections.abc import Callable

from forebay.engine.limits import PoolGroup, SchedulerLimits
from forebay.engine.plan import StepPlan, StepResult
from forebay.engine.request import Speculation
from forebay.engine.scheduler import Scheduler
from scheduler_build import request

DECODES = 256
PAGE_TOKENS = 16
ONE_GROUP = (PoolGroup("full", DECODES * 80),)
TWO_GROUPS = (PoolGroup("full", DECODES * 80), PoolGroup("sliding", DECODES * 40, 128))


def process_seconds(call: Callable[[], object]) -> float:
    """Process time of one call: other processes on the machine do not count."""
    start = time.process_time()
    call()
    return time.process_time() - start


def reference_loop() -> int:
    """100,000 additions: what the machine can do at this moment."""
    total = 0
    for number in range(100_000):
        total += number
    return total


def decoding_scheduler(
    groups: tuple[PoolGroup, ...] = ONE_GROUP, speculation: Speculation | None = None, context_tokens: int = 24
) -> Scheduler:
    """A scheduler with `DECODES` rows that all decode for a long time."""
    limits = SchedulerLimits(
        groups=groups,
        page_tokens=PAGE_TOKENS,
        max_running=DECODES,
        max_waiting=4096,
        max_batch_tokens=DECODES * 32,
        max_prompt_tokens=1024,
        max_sequence_tokens=2048,
    )
    scheduler = Scheduler(limits, b"")
    for number in range(DECODES):
        prompt = range(number, number + context_tokens)
        scheduler.add(request(number, prompt, max_new_tokens=1000, speculation=speculation), 0.0)
    while scheduler.load().pending_prefill_tokens:
        turn(scheduler)
    return scheduler


def turn(scheduler: Scheduler, hits: int = 0, prepare: Callable[[StepPlan], object] | None = None) -> None:
    """One step whose every sampled row gets token 5, after `hits` right drafts where it may draft.

    `prepare` is what a runner does with the plan before it computes.
    """
    plan = scheduler.plan()
    if plan is None:
        raise AssertionError("there is nothing to plan")
    if prepare is not None:
        prepare(plan)
    rows = [row for row, sampled in enumerate(plan.samples) if sampled]
    drafted = tuple(plan.draft_limits[row] for row in rows)
    counts = tuple(1 + min(hits, limit) for limit in drafted)
    slots, epochs = tuple(plan.slots[row] for row in rows), tuple(plan.epochs[row] for row in rows)
    scheduler.commit(StepResult(plan.step, slots, epochs, counts, (5,) * sum(counts), drafted), 0.0)
