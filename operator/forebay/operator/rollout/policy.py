"""The steps of a rollout as values: how much of the candidate runs, how much traffic it gets, for how long, who judges.

A policy is resolved once, when a run opens, and frozen with it: later edits of the spec do not change a run's plan.
Capacity and traffic are two axes. Both never fall from step to step, traffic never exceeds capacity, and the last step
is everything; `problem_of` names what is wrong with steps that break this.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from forebay.api.rollout import ErrorsGate, Gate, RolloutPolicy
from forebay.api.rollout import Step as StepSpec
from forebay.contract.errors import InvalidSpec

WHOLE: Final = 100
"""Percent of the traffic, and of the capacity, of a step that is everything."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Candidate pods of a step: a count, or a percentage of the deployment's replicas, rounded up, at least one."""

    count: int | None = None
    percent: int | None = None

    def pods(self, replicas: int) -> int:
        """Pods at this many replicas; never more than the replicas, never none unless there are none."""
        if replicas == 0:
            return 0
        wanted = self.count if self.count is not None else math.ceil(replicas * (self.percent or 0) / WHOLE)
        return min(replicas, max(1, wanted))

    @property
    def text(self) -> str:
        """As it is written in a spec."""
        return str(self.count) if self.count is not None else f"{self.percent}%"


@dataclass(frozen=True, slots=True)
class Step:
    """`traffic` percent go to the candidate once `capacity` is routable; gates judge after `soak_s` seconds.

    `gates` are as in the spec.
    """

    name: str
    capacity: Capacity
    traffic: int
    soak_s: int = 0
    gates: tuple[Gate, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """All steps in order, the seconds during which the old revision stays warm after the last, and the patience.

    A step whose capacity is not routable after `progress_deadline_s` fails the run.
    """

    steps: tuple[Step, ...]
    bake_s: int
    progress_deadline_s: int

    def to_json(self) -> dict[str, Any]:
        """The frozen plan as it stands in a Rollout."""
        return {
            "bakeSeconds": self.bake_s,
            "progressDeadlineSeconds": self.progress_deadline_s,
            "steps": [
                {
                    "name": step.name,
                    "capacity": step.capacity.text,
                    "traffic": step.traffic,
                    "soakSeconds": step.soak_s,
                    "gates": [gate.model_dump(by_alias=True, exclude_none=True) for gate in step.gates],
                }
                for step in self.steps
            ],
        }


def parse_capacity(text: str | int) -> Capacity:
    """A count (2, "2") or a percentage ("25%"); raises `InvalidSpec`."""
    whole = str(text)
    try:
        if whole.endswith("%"):
            percent = int(whole[:-1])
            if 1 <= percent <= WHOLE:
                return Capacity(percent=percent)
        elif int(whole) >= 1:
            return Capacity(count=int(whole))
    except ValueError as error:
        raise InvalidSpec(f"capacity {whole!r} is neither a count nor a percentage", field="capacity") from error
    raise InvalidSpec(
        f"capacity {whole!r} must be a count of at least 1 or a percentage from 1% to 100%", field="capacity"
    )


def problem_of(steps: Sequence[Step]) -> tuple[str, str] | None:
    """(field, message) of the first contradiction in steps as a user wrote them, None when there is none."""
    names: set[str] = set()
    before = Step("", Capacity(count=1), 0)
    for index, step in enumerate(steps):
        field = f"steps[{index}]"
        if step.name in names:
            return f"{field}.name", f"step name {step.name!r} is used twice; give each step its own"
        names.add(step.name)
        if step.traffic < before.traffic:
            return f"{field}.traffic", f"traffic falls from {before.traffic} to {step.traffic}; it may only rise"
        if step.capacity.percent is not None and step.traffic > step.capacity.percent:
            text = (
                f"{step.traffic} % of the traffic on {step.capacity.text} of the pods; raise capacity or lower traffic"
            )
            return f"{field}.traffic", text
        if _falls(before.capacity, step.capacity):
            text = f"capacity falls from {before.capacity.text} to {step.capacity.text}; it may only rise"
            return f"{field}.capacity", text
        before = step
    if before.traffic != WHOLE or before.capacity.percent != WHOLE:
        return f"steps[{max(0, len(steps) - 1)}]", "the last step must have capacity 100% and traffic 100"
    return None


def _falls(before: Capacity, now: Capacity) -> bool:
    """Whether capacity falls; a count and a percentage cannot be compared before the replicas are known."""
    if before.percent is not None and now.percent is not None:
        return now.percent < before.percent
    if before.count is not None and now.count is not None:
        return now.count < before.count
    return False


_ERRORS: Final = (Gate(name="errors", errors=ErrorsGate()),)

DEFAULT_POLICY: Final = Policy(
    steps=(
        Step("isolated", Capacity(count=1), 0),
        Step("canary", Capacity(percent=5), 5, 30, _ERRORS),
        Step("half", Capacity(percent=50), 50, 30, _ERRORS),
        Step("all", Capacity(percent=WHOLE), WHOLE, 30, _ERRORS),
    ),
    bake_s=300,
    progress_deadline_s=1800,
)
"""What a deployment gets that names no steps of its own."""


def read_steps(steps: Sequence[StepSpec]) -> tuple[Step, ...]:
    """Steps as a spec or a Rollout has them; raises `InvalidSpec`."""
    return tuple(
        Step(
            step.name,
            parse_capacity(step.capacity),
            step.traffic,
            step.soak_seconds or 0,
            tuple(step.gates or ()),
        )
        for step in steps
    )


def read_policy(spec: RolloutPolicy | None) -> Policy:
    """The policy of a spec, with defaults for what it leaves out."""
    if spec is None:
        return DEFAULT_POLICY
    steps = DEFAULT_POLICY.steps
    if spec.steps is not None:
        steps = read_steps(spec.steps)
    bake_s = DEFAULT_POLICY.bake_s if spec.bake_seconds is None else spec.bake_seconds
    return Policy(steps, bake_s, spec.progress_deadline_seconds or DEFAULT_POLICY.progress_deadline_s)
