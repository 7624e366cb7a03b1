"""Advances one run by one decision. Pure; called once in every pass while a run is open.

    Preflight     nothing is touched until every check passed
    Progressing   step k: the candidate's capacity comes up, then the traffic moves, then it soaks and gates judge
    Soaking       the candidate has everything; the old revision stays warm
    RollingBack   the stable revision is confirmed able, the traffic moves back, then the candidate drains and goes

What holds in any order of pod deaths, readiness delays, edits, clock jumps and operator restarts:
- the stable revision keeps all the replicas that the spec asks for until the run completed;
- traffic rises on a revision only as far as its routable pods carry it;
- capacity and traffic never change in the same decision;
- a run that is told to go back does so from any phase, paused or not, and needs no new pod while stable is warm;
- the same input gives the same decision, and a decision that was not carried out is made again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from forebay.operator.rollout.gates import Judgement, Verdict
from forebay.operator.rollout.plan import RevisionFacts
from forebay.operator.rollout.policy import WHOLE, Policy, Step
from forebay.operator.rollout.run import End, Run, RunPhase


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a decision depends on beside the run.

    - `weights`: percent of the traffic by revision as the routes are written now; `confirmed`: every router that takes
      traffic reports them. `drain_overdue`: they were written so long ago that no request of before can still run.
    - `preflight`: None while it is not done, else what blocks (empty: nothing).
    - `judgement`: of the gates that belong to the run's step now.
    - `turn_back`: what the spec or a person asks for, with the reason; honoured in every phase.
    """

    now: datetime
    replicas: int
    stable: RevisionFacts
    candidate: RevisionFacts
    weights: Mapping[str, int]
    confirmed: bool
    drain_overdue: bool
    preflight: str | None
    judgement: Judgement
    turn_back: tuple[End, str] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The run after this pass, pods by revision (a revision that is absent goes), and percent of the traffic."""

    run: Run
    pods: Mapping[str, int]
    weights: Mapping[str, int]


def advance(run: Run, policy: Policy, facts: RunFacts) -> Decision:
    """The next decision for a run."""
    run = _on_this_clock(run, facts.now)
    if run.finished:
        return _over(run, facts)
    if facts.turn_back is not None and run.phase is not RunPhase.ROLLING_BACK:
        end, message = facts.turn_back
        run = run.turn_back(end, facts.now, message)
    match run.phase:
        case RunPhase.PENDING | RunPhase.PREFLIGHT:
            # That the checks passed is written down before anything is touched.
            return _untouched(_preflight(run, facts), facts)
        case RunPhase.PROGRESSING:
            return _progress(run, policy, facts)
        case RunPhase.SOAKING:
            return _bake(run, policy, facts)
        case RunPhase.ROLLING_BACK:
            return _go_back(run, facts)
        case RunPhase.COMPLETED | RunPhase.ROLLED_BACK | RunPhase.SUPERSEDED:
            # It ended before it touched anything.
            return _untouched(run, facts)


def _over(run: Run, facts: RunFacts) -> Decision:
    """What is left of a run that was seen finished."""
    if run.phase is RunPhase.COMPLETED:
        return Decision(run, {run.candidate: facts.replicas}, {run.candidate: WHOLE})
    return _without_candidate(run, facts)


def _on_this_clock(run: Run, now: datetime) -> Run:
    """Times that lie ahead come from a clock that was set back since; waiting for them could take for ever."""
    confirmed_at = min(run.confirmed_at, now) if run.confirmed_at is not None else None
    return replace(run, since=min(run.since, now), confirmed_at=confirmed_at)


def _preflight(run: Run, facts: RunFacts) -> Run:
    """The run past its preflight if nothing blocks; what is not checked yet, and a pause, keep it where it is."""
    if run.phase is RunPhase.PENDING:
        run = run.enter(RunPhase.PREFLIGHT, facts.now)
    if run.phase is not RunPhase.PREFLIGHT or facts.preflight is None or run.paused:
        return run
    if facts.preflight:
        return replace(run, message=facts.preflight)
    return run.enter(RunPhase.PROGRESSING, facts.now)


def _untouched(run: Run, facts: RunFacts) -> Decision:
    """What runs of the candidate already, because it served before, stays as it is."""
    kept = {run.candidate: facts.candidate.desired} if facts.candidate.exists else {}
    return Decision(run, {run.stable: facts.replicas, **kept}, {run.stable: WHOLE})


def _without_candidate(run: Run, facts: RunFacts) -> Decision:
    """Only the stable revision runs; it has the traffic."""
    return Decision(run, {run.stable: facts.replicas}, {run.stable: WHOLE})


def _progress(run: Run, policy: Policy, facts: RunFacts) -> Decision:
    step = policy.steps[run.step]
    if facts.judgement.verdict is Verdict.FAIL:
        return _go_back(run.turn_back(End.GATE_FAILED, facts.now, facts.judgement.message), facts)
    wanted = step.capacity.pods(facts.replicas)
    pods = max(wanted, _pods_before(run, policy, facts.replicas))
    # Pods that are ready but were not asked for are on their way out.
    asked = facts.candidate.desired if facts.candidate.exists else 0
    able = asked == pods and facts.candidate.ready >= pods and facts.candidate.routable >= pods
    if not able:
        return _bring_up(run, policy, facts, pods)
    if run.paused:
        return _at(run, facts, pods, facts.weights)
    weights = _split(run, step.traffic)
    if facts.weights != weights:
        return _at(replace(run, confirmed_at=None, message=""), facts, pods, weights)
    if not facts.confirmed:
        return _at(replace(run, confirmed_at=None, message="waiting for all routers to confirm"), facts, pods, weights)
    return _at(_after_soak(run, policy, step, facts), facts, pods, weights)


def _bring_up(run: Run, policy: Policy, facts: RunFacts, pods: int) -> Decision:
    """The step's pods are not all routable: wait for them, within the deadline, without moving traffic towards them."""
    deadline = run.since + timedelta(seconds=policy.progress_deadline_s)
    seen = f"{facts.candidate.routable} of {pods} pods of revision {run.candidate} are routable"
    if facts.now >= deadline and not run.paused:
        text = f"{seen} after {policy.progress_deadline_s} s"
        return _go_back(run.turn_back(End.DEADLINE, facts.now, text), facts)
    run = replace(run, confirmed_at=None, message=seen)
    home = {run.stable: WHOLE}
    if facts.candidate.routable == 0 and facts.stable.routable > 0 and facts.weights != home:
        return _at(run, facts, facts.candidate.desired, home)
    return _at(run, facts, pods, facts.weights)


def _after_soak(run: Run, policy: Policy, step: Step, facts: RunFacts) -> Run:
    """The step's capacity and traffic are confirmed: soak, then ask the gates, then go on."""
    confirmed_at = run.confirmed_at or facts.now
    run = replace(run, confirmed_at=confirmed_at)
    if facts.now < confirmed_at + timedelta(seconds=step.soak_s):
        return replace(run, message=f"soaking for {step.soak_s} s")
    if facts.judgement.verdict is not Verdict.PASS:
        return replace(run, message=facts.judgement.message)
    if run.step + 1 < len(policy.steps):
        return run.next_step(facts.now)
    return run.enter(RunPhase.SOAKING, facts.now, f"the old revision stays warm for {policy.bake_s} s")


def _bake(run: Run, policy: Policy, facts: RunFacts) -> Decision:
    if facts.judgement.verdict is Verdict.FAIL:
        return _go_back(run.turn_back(End.GATE_FAILED, facts.now, facts.judgement.message), facts)
    able = facts.candidate.routable >= facts.replicas
    if able and not run.paused and facts.now >= run.since + timedelta(seconds=policy.bake_s):
        run = run.enter(RunPhase.COMPLETED, facts.now)
    # The old revision goes only in a pass that starts from a run that was seen completed.
    return Decision(run, {run.stable: facts.replicas, run.candidate: facts.replicas}, _kept(run, facts))


def _go_back(run: Run, facts: RunFacts) -> Decision:
    candidate = facts.candidate
    pods = candidate.desired if candidate.exists else 0
    home = {run.stable: WHOLE}
    if facts.weights != home:
        # Better half a service than none: the candidate keeps what it has until stable can carry the traffic.
        able = facts.stable.routable >= facts.replicas or candidate.routable == 0
        return _at(run, facts, pods, home if able else facts.weights)
    is_busy = candidate.inflight > 0
    if not facts.confirmed or (is_busy and not facts.drain_overdue):
        return _at(run, facts, pods, home)
    if candidate.pods > 0 and (candidate.ready > 0 or is_busy):
        return _at(run, facts, 0, home)
    return _without_candidate(_gone_back(run, facts), facts)


def _gone_back(run: Run, facts: RunFacts) -> Run:
    rejects = run.end is not None and run.end.rejects
    return run.enter(RunPhase.ROLLED_BACK if rejects else RunPhase.SUPERSEDED, facts.now, run.message)


def _at(run: Run, facts: RunFacts, candidate_pods: int, weights: Mapping[str, int]) -> Decision:
    return Decision(run, {run.stable: facts.replicas, run.candidate: candidate_pods}, weights)


def _kept(run: Run, facts: RunFacts) -> Mapping[str, int]:
    """The candidate has everything, unless it lost all its pods while the old revision still answers."""
    if facts.candidate.routable == 0 and facts.stable.routable > 0:
        return {run.stable: WHOLE}
    return {run.candidate: WHOLE}


def _split(run: Run, traffic: int) -> dict[str, int]:
    shares = {run.stable: WHOLE - traffic, run.candidate: traffic}
    return {revision: share for revision, share in shares.items() if share > 0}


def _pods_before(run: Run, policy: Policy, replicas: int) -> int:
    """Capacity never falls inside a run, also where a count of pods is followed by a smaller percentage."""
    return max((step.capacity.pods(replicas) for step in policy.steps[: run.step]), default=0)
