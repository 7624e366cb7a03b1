"""What people say to runs: whether an action is accepted, and what the accepted ones add up to. Pure.

An action is judged once, against the run as it stands, and its verdict is written into its status. Only accepted
actions count, in the order of their creation, so their effect is the same in every pass and after every restart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from forebay.api.rollout import RolloutAction
from forebay.api.shape import parse
from forebay.contract.errors import InvalidSpec
from forebay.operator.rollout.record import OpenRun, Unreadable
from forebay.operator.rollout.run import RunPhase
from forebay.operator.snapshot import Json

ACCEPTED = "Accepted"
REFUSED = "Refused"


@dataclass(frozen=True, slots=True)
class Orders:
    """Accepted actions on one run: `approved` has the names of steps."""

    paused: bool | None = None
    abort: str | None = None
    approved: frozenset[str] = frozenset()
    retried: bool = False


def judge_action(document: Json, run: OpenRun | Unreadable | None) -> dict[str, Any]:
    """The status of a new action; `run` is the Rollout it names, None where there is none."""
    try:
        action = parse(RolloutAction, {key: value for key, value in document.items() if key != "status"})
    except InvalidSpec as error:
        return _refused(error.message)
    ref, verb = action.spec.rollout_ref, action.spec.verb
    if run is None:
        return _refused(f"spec.rolloutRef.name: Rollout {ref.name} does not exist in this namespace")
    if isinstance(run, Unreadable):
        return _refused(f"Rollout {ref.name} cannot be read by this operator: {run.message}")
    if run.uid != ref.uid:
        return _refused(f"spec.rolloutRef.uid: Rollout {ref.name} has uid {run.uid}; the action is for an earlier one")
    if verb == "retry":
        return _judge_retry(run)
    if run.run.finished:
        return _refused(f"Rollout {ref.name} is over: {run.run.phase}; nothing can be changed about it")
    if run.run.phase is RunPhase.ROLLING_BACK:
        return _refused(f"Rollout {ref.name} is on its way back and goes to its end")
    if verb == "approve":
        return _judge_approval(run, action.spec.step)
    if verb == "resume" and not run.run.paused:
        return _refused(f"Rollout {ref.name} is not paused")
    texts = {"pause": "the run waits where it is", "resume": "the run goes on", "abort": "the run goes back"}
    return {"phase": ACCEPTED, "message": texts[verb]}


def _judge_retry(run: OpenRun) -> dict[str, Any]:
    if run.run.phase is not RunPhase.ROLLED_BACK:
        return _refused(f"retry is for a run that was rolled back; {run.name} is {run.run.phase}")
    return {"phase": ACCEPTED, "message": f"revision {run.run.candidate} may be tried again"}


def _judge_approval(run: OpenRun, asked: str | None) -> dict[str, Any]:
    step = asked or run.policy.steps[run.run.step].name
    found = next((item for item in run.policy.steps if item.name == step), None)
    if found is None:
        known = ", ".join(item.name for item in run.policy.steps)
        return _refused(f"spec.step: the run has no step {step}; it has {known}")
    if not any(gate.approval is not None for gate in found.gates):
        return _refused(f"step {step} has no approval gate")
    return {"phase": ACCEPTED, "message": f"step {step} is approved", "step": step}


def _refused(message: str) -> dict[str, Any]:
    return {"phase": REFUSED, "message": message[:1024]}


def orders_for(run: OpenRun, actions: Iterable[Json]) -> Orders:
    """What the accepted actions on this very run add up to."""
    paused: bool | None = None
    abort: str | None = None
    approved: set[str] = set()
    retried = False
    for action in sorted(actions, key=_age):
        spec, status = action.get("spec") or {}, action.get("status") or {}
        if (spec.get("rolloutRef") or {}).get("uid") != run.uid or status.get("phase") != ACCEPTED:
            continue
        match spec.get("verb"):
            case "pause" | "resume" as verb:
                paused = verb == "pause"
            case "abort":
                abort = abort or f"aborted: {spec.get('reason', '')}"
            case "approve":
                approved.add(str(status.get("step", "")))
            case "retry":
                retried = True
    return Orders(paused, abort, frozenset(approved), retried)


def _age(action: Json) -> tuple[str, str]:
    metadata: Mapping[str, Any] = action["metadata"]
    return str(metadata.get("creationTimestamp", "")), str(metadata["name"])
