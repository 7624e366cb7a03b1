"""Runs as Rollout objects: the frozen plan in the spec, the state of the run in the status.

A Rollout without a status is a run that has just been opened. A Rollout of a newer operator that cannot be read is
an `Unreadable`: its deployment holds as it is until an operator that can read it comes back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from forebay.api.rollout import Rollout
from forebay.api.shape import parse
from forebay.contract.errors import ForebayError
from forebay.contract.names import ROLE_ROLLOUT
from forebay.operator.desired.kinds import ROLLOUT
from forebay.operator.desired.metadata import Owner, child, is_ours
from forebay.operator.rollout.gates import GateResult
from forebay.operator.rollout.policy import Policy, read_steps
from forebay.operator.rollout.run import FINISHED, End, Run, RunPhase
from forebay.operator.snapshot import Json

HISTORY: Final = 10
"""Finished runs that are kept."""
PAUSED: Final = "Paused"


@dataclass(frozen=True, slots=True)
class Counters:
    """Requests and errors of one revision as one router counts them since its start."""

    router: str
    revision: str
    requests: int
    errors: int


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A Rollout as it was read: the run, its plan, the counters of its step's beginning, and the object itself."""

    run: Run
    policy: Policy
    baseline: tuple[Counters, ...]
    history: tuple[Json, ...]
    document: Json

    @property
    def name(self) -> str:
        """Name of the Rollout."""
        return str(self.document["metadata"]["name"])

    @property
    def uid(self) -> str:
        """Uid of the Rollout."""
        return str(self.document["metadata"].get("uid", ""))


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A Rollout that this operator cannot read, and why."""

    name: str
    message: str


def read_runs(children: Iterable[Json], owner: Owner) -> tuple[OpenRun | Unreadable, ...]:
    """All runs of this owner, oldest first."""
    mine = [item for item in children if item["kind"] == ROLLOUT.kind and is_ours(item, owner)]
    return tuple(read_run(item) for item in sorted(mine, key=number_of))


def number_of(document: Json) -> tuple[int, str]:
    """Sort key of a Rollout: its number, which ends its name."""
    name = str(document["metadata"]["name"])
    tail = name.rpartition("-")[2]
    return (int(tail) if tail.isdecimal() else 0, name)


def read_run(document: Json) -> OpenRun | Unreadable:
    """One run."""
    name = str(document["metadata"]["name"])
    try:
        rollout = parse(Rollout, document)
        steps = read_steps(rollout.spec.plan.steps)
        policy = Policy(steps, rollout.spec.plan.bake_seconds, rollout.spec.plan.progress_deadline_seconds)
        run = _run(rollout, document)
    except (ForebayError, ValueError) as error:
        return Unreadable(name, str(error))
    status = document.get("status") or {}
    baseline = tuple(
        Counters(item["router"], item["revision"], item["requests"], item["errors"])
        for item in status.get("baseline") or ()
    )
    return OpenRun(run, policy, baseline, tuple(status.get("history") or ()), document)


def _run(rollout: Rollout, document: Json) -> Run:
    stable, candidate = rollout.spec.stable.revision, rollout.spec.candidate.revision
    status = rollout.status
    if status is None:
        created = document["metadata"].get("creationTimestamp") or "1970-01-01T00:00:00Z"
        return Run(stable, candidate, RunPhase.PENDING, read_time(created))
    paused = status.phase == PAUSED
    return Run(
        stable=stable,
        candidate=candidate,
        phase=RunPhase((status.resume_to or "") if paused else status.phase),
        since=read_time(status.since),
        step=status.step_index,
        confirmed_at=read_time(status.confirmed_at) if status.confirmed_at else None,
        paused=paused,
        end=End(status.end) if status.end else None,
        message=status.message,
    )


def rollout_object(owner: Owner, name: str, spec: Mapping[str, Any], candidate: str) -> dict[str, Any]:
    """A new Rollout."""
    return child(ROLLOUT, owner, name, {"spec": dict(spec)}, role=ROLE_ROLLOUT, revision=candidate)


def run_status(
    run: Run,
    policy: Policy,
    *,
    traffic: int,
    gates: Iterable[GateResult],
    baseline: Iterable[Counters],
    history: Iterable[Json],
    notes: Iterable[str],
) -> dict[str, Any]:
    """The whole status of a Rollout. Optional fields are left out rather than null."""
    shown = PAUSED if run.paused and not run.finished else str(run.phase)
    status: dict[str, Any] = {
        "phase": shown,
        "resumeTo": str(run.phase) if shown == PAUSED else None,
        "step": policy.steps[run.step].name,
        "stepIndex": run.step,
        "since": write_time(run.since),
        "confirmedAt": write_time(run.confirmed_at) if run.confirmed_at else None,
        "end": str(run.end) if run.end else None,
        "message": run.message[:1024],
        "traffic": traffic,
        "gates": [item.to_json() for item in gates],
        "history": list(history),
        "baseline": [
            {"router": item.router, "revision": item.revision, "requests": item.requests, "errors": item.errors}
            for item in baseline
        ],
        "notes": [note[:1024] for note in notes],
    }
    return {key: value for key, value in status.items() if value is not None and value != []}


def read_time(text: str) -> datetime:
    """An RFC 3339 time in UTC."""
    return datetime.fromisoformat(text)


def write_time(moment: datetime) -> str:
    """A time as Kubernetes writes it, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def surplus_runs(runs: Iterable[OpenRun | Unreadable]) -> tuple[OpenRun, ...]:
    """Finished runs beyond the history, oldest first."""
    finished = [item for item in runs if isinstance(item, OpenRun) and item.run.phase in FINISHED]
    return tuple(finished[: max(0, len(finished) - HISTORY)])
