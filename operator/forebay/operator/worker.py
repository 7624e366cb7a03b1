"""One pass: observe, reconcile, execute; and the workers that take keys from the queue and run passes.

A pass is the only unit of work. Its errors are mapped here, once: conflicts and vanished objects are tried again soon,
an overloaded API server is given time, a refused write is reported in the object's status and tried again slowly, and
a bug of ours ends this one pass with a state dump while every other key goes on.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from forebay.contract.clock import Clock
from forebay.contract.errors import ApiConflict, ApiDenied, ApiGone, ApiThrottled, Bug, ForebayError
from forebay.operator.actions import Apply, PatchStatus, Plan
from forebay.operator.cluster import ACTION_KIND, FOREBAY_API, Json
from forebay.operator.contention import Contention
from forebay.operator.execute import Executor
from forebay.operator.hindered import hindered_status
from forebay.operator.lease import LeadershipLost
from forebay.operator.metrics import Metrics
from forebay.operator.observe import Observer
from forebay.operator.probe import Probe
from forebay.operator.queue import Done, Failed, Key, KeyedQueue, Outcome
from forebay.operator.reconcile import (
    reconcile_action,
    reconcile_deployment,
    reconcile_gpu_class,
    reconcile_model,
    reconcile_release,
)

log = logging.getLogger(__name__)

DENIED_RETRY_S = 60.0
"""A refused write needs a person; it is tried again at this pace."""

MAX_DUMP_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Decided:
    """What a pass saw of its own object and what it wants done."""

    own: Json | None
    children: Sequence[Json]
    plan: Plan
    snapshot: Any


class Passes:
    """Runs passes; one instance per process, safe for several keys at the same time."""

    def __init__(self, observer: Observer, executor: Executor, clock: Clock, metrics: Metrics) -> None:
        self._observer = observer
        self._executor = executor
        self._clock = clock
        self._metrics = metrics
        self._contention = Contention()

    async def run(self, key: Key) -> Outcome:
        """One pass of `key`. Raises `LeadershipLost` only."""
        started = self._clock.monotonic_s()
        label, outcome = await self._run(key)
        self._metrics.passed(key.kind, label, self._clock.monotonic_s() - started)
        return outcome

    async def _run(self, key: Key) -> tuple[str, Outcome]:
        decided: Decided | None = None
        try:
            decided = await self._decide(key)
            execution = await self._executor.execute(decided.plan.actions, decided.own, decided.children)
            if execution.error is not None:
                await self._report(key, decided, execution.error)
        except LeadershipLost:
            raise
        except Bug as error:
            return self._bug(key, error, decided)
        except ForebayError as error:
            return self._failed(key, error)
        except Exception as error:  # noqa: BLE001 - one key's pass fails, the process and all other keys go on
            return self._bug(key, error, decided)
        if execution.error is not None:
            return self._failed(key, execution.error)
        applied = any(isinstance(action, Apply) for action in decided.plan.actions)
        if self._contention.note(key, self._clock.monotonic_s(), applied=applied):
            log.warning("%s: another writer keeps undoing changes of its children; backing off", key)
            return "contended", Failed()
        return "ok", Done(decided.plan.requeue_after_s)

    async def _decide(self, key: Key) -> Decided:
        now = datetime.fromtimestamp(self._clock.wall_s(), UTC)
        observer = self._observer
        match key.kind:
            case "ModelDeployment":
                deployment = await observer.deployment(key)
                plan = reconcile_deployment(deployment, now)
                return Decided(deployment.deployment, deployment.children, plan, deployment)
            case "Model":
                model = await observer.model(key)
                return Decided(model.model, (), reconcile_model(model, now), model)
            case "GPUClass":
                gpu_class = await observer.gpu_class(key)
                return Decided(gpu_class.gpu_class, (), reconcile_gpu_class(gpu_class, now), gpu_class)
            case "RolloutAction":
                action = await observer.action(key)
                return Decided(action.action, (), reconcile_action(action), action)
            case "EngineRelease":
                release = await observer.release(key)
                return Decided(release.release, (), reconcile_release(release, now), release)
        raise Bug(f"{key} is of a kind that nobody reconciles")

    async def _report(self, key: Key, decided: Decided, error: ForebayError) -> None:
        """Say in the status that a write was refused; skipped when the status says so already."""
        if not isinstance(error, ApiDenied) or decided.own is None or key.kind == ACTION_KIND:
            return
        own = [item for item in decided.plan.actions if isinstance(item, PatchStatus) and item.version is None]
        planned = [item.status for item in own]
        now = datetime.fromtimestamp(self._clock.wall_s(), UTC)
        status = hindered_status(decided.own, planned[-1] if planned else None, error, now)
        if status is None:
            return
        patch = PatchStatus(FOREBAY_API, key.kind, key.namespace or None, key.name, status)
        execution = await self._executor.execute([patch], decided.own, ())
        if execution.error is not None:
            log.warning("%s: the refusal could not be reported: %s", key, execution.error)

    def _failed(self, key: Key, error: ForebayError) -> tuple[str, Outcome]:
        match error:
            case ApiConflict():
                log.info("%s: conflict, will look again: %s", key, error)
                return "conflict", Failed()
            case ApiGone():
                log.info("%s: gone meanwhile: %s", key, error)
                return "gone", Failed()
            case ApiDenied():
                log.error("%s: refused: %s", key, error)
                return "denied", Failed(DENIED_RETRY_S)
            case ApiThrottled():
                log.warning("%s: the API server is busy or away: %s", key, error)
                return "throttled", Failed(error.retry.after_s)
        return self._bug(key, error, None)

    def _bug(self, key: Key, error: Exception, decided: Decided | None) -> tuple[str, Outcome]:
        log.error("%s: bug in a pass; state follows: %s", key, _dump(decided), exc_info=error)
        return "bug", Failed()


async def work(queue: KeyedQueue, passes: Passes, probe: Probe, workers: int) -> None:
    """Run `workers` workers until cancelled or until the Lease is lost (`LeadershipLost`)."""

    async def one() -> None:
        while True:
            key = await queue.take()
            outcome: Outcome = Failed()
            try:
                outcome = await passes.run(key)
            finally:
                queue.finish(key, outcome)
                probe.finished_pass()

    tasks = [asyncio.ensure_future(one()) for _ in range(workers)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _dump(decided: Decided | None) -> str:
    return "none was read" if decided is None else json.dumps(asdict(decided.snapshot), default=str)[:MAX_DUMP_CHARS]
