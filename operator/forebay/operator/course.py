"""Where a deployment goes in this pass: straight to its first revision, along an open run, or nowhere. Pure.

A change that makes a new revision of a deployment that has served opens a run; only an open run moves traffic to
another revision. Without one the plain planner keeps what serves, brings up a first revision, and drains what is left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from forebay.operator.actions import Action, Emit, PatchStatus
from forebay.operator.conditions import Reason
from forebay.operator.intent import Intent
from forebay.operator.looked import Looked, drain_overdue, revision_facts
from forebay.operator.rollout.gates import GateResult, Judgement, Verdict, judge
from forebay.operator.rollout.machine import Decision, RunFacts, advance
from forebay.operator.rollout.plan import Phase, RolloutInput, RolloutStep, is_protected, plan_rollout
from forebay.operator.rollout.policy import read_policy
from forebay.operator.rollout.preflight import Preflight, preflight
from forebay.operator.rollout.record import (
    Counters,
    OpenRun,
    Unreadable,
    number_of,
    rollout_object,
    run_status,
    write_time,
)
from forebay.operator.rollout.run import End, Run, RunPhase
from forebay.operator.rollout.verbs import Orders, orders_for
from forebay.operator.rollout.watch import evaluate
from forebay.operator.snapshot import Json


@dataclass(frozen=True, slots=True)
class RunReport:
    """What the deployment's status says about runs: a reason, a message, and whether a person must act."""

    name: str | None
    reason: Reason
    message: str
    needs_person: bool
    rejected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Course:
    """The step to take, a Rollout to create, status writes of Rollouts, and events."""

    step: RolloutStep
    report: RunReport | None = None
    opened: Json | None = None
    writes: tuple[PatchStatus, ...] = ()
    events: tuple[Action, ...] = ()


def set_course(state: Looked) -> Course:
    """Decide."""
    unreadable = next((item for item in reversed(state.runs) if isinstance(item, Unreadable)), None)
    if unreadable is not None:
        text = f"Rollout {unreadable.name} cannot be read by this operator and is held as it is: {unreadable.message}"
        held = _held(state)
        return Course(held, RunReport(unreadable.name, Reason.ROLLOUT_UNREADABLE, text, needs_person=True))
    if state.open_run is not None:
        return _along(state, state.open_run)
    given = _plain_input(state, state.target)
    target, serving = state.target, state.serving
    current = next((item for item in given.revisions if item.revision == serving), None)
    if target is None or serving == target or current is None or not is_protected(given, current):
        return Course(plan_rollout(given), _rejections(state))
    rejecting = _rejecting(state, target)
    if rejecting is not None:
        return _refused(state, rejecting)
    return _opened(state, target, serving or "")


def _plain_input(state: Looked, target: str | None) -> RolloutInput:
    names = set(state.workloads) | {name for name in (target, state.serving) if name is not None}
    return RolloutInput(
        target=target,
        replicas=state.replicas,
        serving=state.serving,
        stable=state.stable,
        confirmed=state.confirmed,
        drain_overdue=drain_overdue(state),
        revisions=tuple(revision_facts(state, name) for name in sorted(names)),
    )


def _held(state: Looked) -> RolloutStep:
    """Everything stays, shares of traffic too."""
    return replace(plan_rollout(_plain_input(state, None)), split=tuple(_ordered(state.weights)))


def _serve_on(state: Looked, phase: Phase) -> RolloutStep:
    """What serves goes on serving, alone; what else runs drains and goes."""
    return replace(plan_rollout(_plain_input(state, state.serving)), phase=phase)


def _opened(state: Looked, target: str, serving: str) -> Course:
    number = max((number_of(item.document)[0] for item in state.runs if isinstance(item, OpenRun)), default=0) + 1
    name = f"{state.owner.name}-{target}-{number}"
    assert isinstance(state.intent, Intent)  # noqa: S101 - there is a target
    policy = read_policy(state.intent.references.deployment.spec.rollout)
    stable_record = _record_of(state, serving) or {}
    spec: dict[str, Any] = {
        "deployment": {"name": state.owner.name, "uid": state.owner.uid},
        "stable": {
            "revision": serving,
            "release": str(stable_record.get("release", "")),
            "configDigest": str(stable_record.get("digest", "")),
        },
        "candidate": {
            "revision": target,
            "release": state.intent.effective.release,
            "configDigest": state.intent.effective.digest,
        },
        "generation": state.document["metadata"].get("generation", 0),
        "plan": policy.to_json(),
    }
    document = rollout_object(state.owner, name, spec, target)
    text = f"Rollout {name} opens: revision {serving} to {target}"
    event = Emit(state.document, "Normal", "RolloutOpened", text)
    report = RunReport(name, Reason.ROLLOUT_PROGRESSING, text, needs_person=False)
    step = _serve_on(state, Phase.ROLLING)
    known = revision_facts(state, target)
    if known.exists:
        # A candidate that served before may still be there; the run decides what becomes of it.
        step = replace(step, replicas=tuple(sorted({**dict(step.replicas), target: known.desired}.items())))
    return Course(step, report, opened=document, events=(event,))


def _record_of(state: Looked, revision: str) -> Json | None:
    """The effective configuration that was stored with a revision."""
    stored = state.stored.get(revision)
    record = (stored.document.get("data") or {}).get("effective") if stored is not None else None
    return record if isinstance(record, Mapping) else None


def _along(state: Looked, opened: OpenRun) -> Course:
    """One decision of an open run."""
    orders = orders_for(opened, state.snapshot.actions)
    spec = state.deployment.spec.rollout if state.deployment is not None else None
    # A run whose spec cannot be realised waits, like one that somebody paused.
    paused = opened.run.paused if orders.paused is None else orders.paused
    run = replace(opened.run, paused=paused or bool(spec is not None and spec.paused))
    waits = run if state.target is not None else replace(run, paused=True)
    results = _results(state, opened, orders)
    checks = _preflight(state, opened)
    facts = _run_facts(state, opened, orders, judge(results), checks)
    decision = advance(waits, opened.policy, facts)
    decision = replace(decision, run=replace(decision.run, paused=run.paused))
    step = RolloutStep(
        replicas=tuple(sorted({**_leftovers(state, opened.run), **decision.pods}.items())),
        serving=decision.run.stable if decision.weights.get(decision.run.stable) else decision.run.candidate,
        phase=Phase.ROLLING,
        split=tuple(_ordered(decision.weights)),
    )
    status = _status(state, opened, decision, results, checks)
    writes = () if status == opened.document.get("status") else (_patch(opened.document, status),)
    report = _report(opened, decision.run, checks)
    return Course(step, report, writes=writes, events=_events(state, opened, decision.run))


def _leftovers(state: Looked, run: Run) -> dict[str, int]:
    """Revisions of before the run that still finish their requests."""
    drained = dict(plan_rollout(_plain_input(state, state.serving)).replicas)
    return {name: count for name, count in drained.items() if name not in (run.stable, run.candidate)}


def _run_facts(
    state: Looked, opened: OpenRun, orders: Orders, judgement: Judgement, checks: Preflight | None
) -> RunFacts:
    return RunFacts(
        now=state.now,
        replicas=state.replicas,
        stable=revision_facts(state, opened.run.stable),
        candidate=revision_facts(state, opened.run.candidate),
        weights=state.weights,
        confirmed=state.confirmed,
        drain_overdue=drain_overdue(state),
        preflight=None if checks is None else checks.blocks,
        judgement=judgement,
        turn_back=_turn_back(state, opened, orders),
    )


def _turn_back(state: Looked, opened: OpenRun, orders: Orders) -> tuple[End, str] | None:
    if orders.abort is not None:
        return End.ABORTED, orders.abort
    if state.target is None or state.target == opened.run.candidate:
        return None
    if state.target == opened.run.stable:
        return End.REVERTED, f"the spec asks for revision {state.target} again"
    return End.REPLACED, f"the spec asks for revision {state.target} now"


def _results(state: Looked, opened: OpenRun, orders: Orders) -> tuple[GateResult, ...]:
    """What the gates say now; before the step's traffic is confirmed there is nothing to judge, and they hold."""
    run, step = opened.run, opened.policy.steps[opened.run.step]
    gates = step.gates if run.phase is RunPhase.PROGRESSING else ()
    if run.phase is RunPhase.SOAKING:
        gates = tuple(gate for gate in step.gates if gate.errors is not None)
    elif run.confirmed_at is None:
        text = "waits until the traffic of the step is confirmed"
        return tuple(GateResult(gate.name, Verdict.HOLD, text) for gate in gates)
    return evaluate(
        gates,
        stable=run.stable,
        candidate=run.candidate,
        baseline=opened.baseline,
        counters=_counters(state),
        approved=step.name in orders.approved,
        now=state.now,
    )


def _counters(state: Looked) -> tuple[Counters, ...] | None:
    """What routers count for each revision; None while one that takes traffic does not answer or does not count."""
    if state.observed.missing:
        return None
    found: list[Counters] = []
    for router in state.snapshot.routers:
        if router.report is None:
            continue
        if router.report.revisions is None:
            return None
        found += [Counters(router.pod, item.revision, item.requests, item.errors) for item in router.report.revisions]
    return tuple(sorted(found, key=lambda item: (item.router, item.revision)))


def _preflight(state: Looked, opened: OpenRun) -> Preflight | None:
    """The checks, while they matter and the spec still asks for the candidate."""
    intent = state.intent
    early = opened.run.phase in (RunPhase.PENDING, RunPhase.PREFLIGHT)
    if not early or not isinstance(intent, Intent) or intent.revision != opened.run.candidate:
        return None
    return preflight(
        intent.references,
        intent.effective,
        _record_of(state, opened.run.stable),
        state.snapshot.gpu_class,
        replicas=state.replicas,
        today=state.now.date(),
    )


def _status(
    state: Looked, opened: OpenRun, decision: Decision, results: tuple[GateResult, ...], checks: Preflight | None
) -> dict[str, Any]:
    before, run, old = opened.run, decision.run, opened.document.get("status") or {}
    left = before.phase is RunPhase.PROGRESSING and (run.step != before.step or run.phase is not before.phase)
    confirmed_now = not left and run.confirmed_at is not None and before.confirmed_at is None
    status = run_status(
        run,
        opened.policy,
        traffic=decision.weights.get(run.candidate, 0),
        gates=() if left and run.phase is RunPhase.PROGRESSING else results,
        baseline=(_counters(state) or ()) if confirmed_now else opened.baseline,
        history=[*opened.history, *([_step_record(state, opened, results)] if left else [])],
        notes=old.get("notes") or () if checks is None else checks.notes,
    )
    return _without_moving_numbers(status, old, results)


def _step_record(state: Looked, opened: OpenRun, results: tuple[GateResult, ...]) -> dict[str, Any]:
    """What is kept of a step that is over."""
    record: dict[str, Any] = {"name": opened.policy.steps[opened.run.step].name, "ended": write_time(state.now)}
    return {**record, "gates": [item.to_json() for item in results]} if results else record


def _without_moving_numbers(status: dict[str, Any], old: Json, results: tuple[GateResult, ...]) -> dict[str, Any]:
    """Numbers that move with every request are written when a verdict changes and when the step ends."""
    same = _verdicts(status) == _verdicts(old) and (status["phase"], status["step"]) == (
        old.get("phase"),
        old.get("step"),
    )
    if not same or "gates" not in old:
        return status
    repeated = _is_from_gates(status["message"], results)
    return {**status, "gates": old["gates"], "message": old["message"] if repeated else status["message"]}


def _is_from_gates(message: str, results: tuple[GateResult, ...]) -> bool:
    return any(item.message and item.message in message for item in results)


def _verdicts(status: Json) -> list[tuple[str, str]]:
    return [(item["gate"], item["verdict"]) for item in status.get("gates") or ()]


def _patch(document: Json, status: dict[str, Any]) -> PatchStatus:
    metadata = document["metadata"]
    return PatchStatus(
        document["apiVersion"],
        document["kind"],
        metadata["namespace"],
        metadata["name"],
        status,
        version=str(metadata.get("resourceVersion", "")),
    )


def _report(opened: OpenRun, run: Run, checks: Preflight | None) -> RunReport:
    step = opened.policy.steps[run.step]
    where = f"Rollout {opened.name}: {run.phase}"
    if run.phase is RunPhase.PROGRESSING:
        where = (
            f"{where}, step {step.name} ({run.step + 1} of {len(opened.policy.steps)}, {step.traffic} % of the traffic)"
        )
    text = f"{where}; {run.message}" if run.message else where
    if run.paused and not run.finished:
        return RunReport(opened.name, Reason.ROLLOUT_PAUSED, f"{text}; paused", needs_person=False)
    if checks is not None and checks.problems:
        return RunReport(opened.name, Reason.PREFLIGHT_BLOCKED, text, needs_person=True)
    if run.phase is RunPhase.ROLLING_BACK:
        return RunReport(opened.name, Reason.ROLLING_BACK, text, needs_person=False)
    return RunReport(opened.name, Reason.ROLLOUT_PROGRESSING, text, needs_person=False)


def _rejecting(state: Looked, target: str) -> OpenRun | None:
    """The run that rejected this revision, unless it was retried or tried again since."""
    last = next((item for item in reversed(_runs(state)) if item.run.candidate == target), None)
    if last is None or last.run.phase is not RunPhase.ROLLED_BACK:
        return None
    return None if orders_for(last, state.snapshot.actions).retried else last


def _runs(state: Looked) -> tuple[OpenRun, ...]:
    return tuple(item for item in state.runs if isinstance(item, OpenRun))


def _rejected(state: Looked) -> tuple[str, ...]:
    names = sorted({item.run.candidate for item in _runs(state)})
    return tuple(name for name in names if _rejecting(state, name) is not None)


def _refused(state: Looked, rejecting: OpenRun) -> Course:
    """The spec asks for a revision that was found bad: what serves goes on."""
    text = (
        f"revision {rejecting.run.candidate} was rolled back by Rollout {rejecting.name}: {rejecting.run.message}; "
        "change the spec, take the change back, or create a RolloutAction with verb retry"
    )
    report = RunReport(rejecting.name, Reason.REVISION_REJECTED, text, needs_person=True, rejected=_rejected(state))
    return Course(_serve_on(state, Phase.REJECTED), report)


def _rejections(state: Looked) -> RunReport | None:
    """Nothing to report but the last run's name and what was rejected before."""
    runs = _runs(state)
    if not runs:
        return None
    return RunReport(runs[-1].name, Reason.ROLLOUT_DONE, "", needs_person=False, rejected=_rejected(state))


def _events(state: Looked, opened: OpenRun, run: Run) -> tuple[Action, ...]:
    before = opened.run
    if (before.phase, before.step) == (run.phase, run.step):
        return ()
    step = opened.policy.steps[run.step]
    what = f"step {step.name}" if run.phase is RunPhase.PROGRESSING else str(run.phase)
    rejects = run.end is not None and run.end.rejects
    text = f"Rollout {opened.name}: {what}" + (f"; {run.message}" if run.message else "")
    return (Emit(state.document, "Warning" if rejects else "Normal", f"Rollout{run.phase}", text),)


def _ordered(weights: Mapping[str, int]) -> list[tuple[str, int]]:
    """Most traffic first, so that the document of a split does not depend on the order of decisions."""
    return sorted(weights.items(), key=lambda item: (-item[1], item[0]))
