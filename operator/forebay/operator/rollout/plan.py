"""One step of a deployment without an open run. Pure; `machine` plans the steps of a run.

    first            no revision ever served: traffic points at the target, which may not be up yet
    settled          the target serves
    drain            every router confirmed the routes: other revisions finish their requests, stop, and go

What holds in any order of pod deaths, edits and operator restarts:
- the serving revision is neither scaled below what the spec asks for nor removed while it serves;
- revisions that do not serve and are not the target go, also when they never came up;
- the same input gives the same step.
"""

import enum
from dataclasses import dataclass

from forebay.contract.errors import Bug
from forebay.operator.rollout.policy import WHOLE


class Phase(enum.Enum):
    """Where a deployment is between two revisions."""

    HOLDING = "holding"
    STARTING = "starting"
    CONFIRMING = "confirming"
    DRAINING = "draining"
    SETTLED = "settled"
    ROLLING = "rolling"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class RevisionFacts:
    """What is seen of one revision.

    - `stored`: its objects can be applied; `exists`: its Deployment is there; `desired`: the Deployment's replicas.
    - `pods`: all pods, also those that are going away; `ready`: ready pods that are not going away.
    - `routable`: pods that every router can send to; `inflight`: requests that routers have open on it.
    """

    revision: str
    stored: bool
    exists: bool
    desired: int = 0
    pods: int = 0
    ready: int = 0
    routable: int = 0
    inflight: int = 0


@dataclass(frozen=True, slots=True)
class RolloutInput:
    """All that a step depends on.

    - `target` is what the spec asks for; None holds everything as it is, because the spec cannot be realised.
    - `serving` is the revision that the written routes give all traffic to; `stable` the last one that was seen
      serving. `confirmed`: every router that takes traffic reports the written routes.
    - `drain_overdue`: the traffic moved so long ago that no request of before can still run.
    """

    target: str | None
    replicas: int
    serving: str | None
    stable: str | None
    confirmed: bool
    drain_overdue: bool
    revisions: tuple[RevisionFacts, ...]


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """What should exist after this step: (revision, replicas) sorted by revision, and who gets the traffic.

    `split` is set while a run shares the traffic out: (revision, percent); otherwise `serving` gets all of it.
    """

    replicas: tuple[tuple[str, int], ...]
    serving: str | None
    phase: Phase
    split: tuple[tuple[str, int], ...] = ()

    @property
    def shares(self) -> tuple[tuple[str, int], ...]:
        """(revision, percent of the traffic), most first."""
        if self.split:
            return self.split
        return () if self.serving is None else ((self.serving, WHOLE),)


def plan_rollout(given: RolloutInput) -> RolloutStep:
    """The next step."""
    if given.target is None:
        return _hold(given)
    facts = {item.revision: item for item in given.revisions}
    target = facts.get(given.target, RevisionFacts(given.target, stored=True, exists=False))
    current = facts.get(given.serving) if given.serving is not None else None
    asleep = given.replicas == 0 and target.exists and given.serving == target.revision
    if current is None or not (asleep or is_protected(given, current)):
        return _step(given, target.revision, Phase.STARTING)
    if current.revision != target.revision:
        raise Bug(f"traffic moves from {current.revision} to {target.revision} without a run")
    return _step(given, target.revision, _settled_phase(given, target))


def _hold(given: RolloutInput) -> RolloutStep:
    """Nothing starts, moves or goes; only the serving revision follows the number of replicas."""
    replicas = tuple(
        (item.revision, given.replicas if item.revision == given.serving else item.desired)
        for item in sorted(given.revisions, key=lambda item: item.revision)
        if item.exists or item.revision == given.serving
    )
    return RolloutStep(replicas, given.serving, Phase.HOLDING)


def is_protected(given: RolloutInput, current: RevisionFacts) -> bool:
    """Whether the revision that has the traffic may not simply be replaced.

    A first revision that never came up is free to replace: waiting for it would keep its devices from the fix.
    """
    can_serve = current.exists or current.stored
    has_served = given.stable is not None or current.ready > 0 or current.routable > 0
    return can_serve and has_served


def _settled_phase(given: RolloutInput, target: RevisionFacts) -> Phase:
    if any(item.revision != target.revision and (item.exists or item.pods) for item in given.revisions):
        return Phase.DRAINING if given.confirmed else Phase.CONFIRMING
    return Phase.SETTLED


def _step(given: RolloutInput, serving: str, phase: Phase) -> RolloutStep:
    replicas = {}
    for item in given.revisions:
        if item.revision in {serving, given.target}:
            continue
        # Traffic that moves in this very step is confirmed by nobody yet, so its old revision stays as it is.
        moved_now = item.revision == given.serving and serving != given.serving
        kept = _drained_replicas(given, item, confirmed=given.confirmed and not moved_now)
        if kept is not None:
            replicas[item.revision] = kept
    replicas[serving] = given.replicas
    if given.target is not None:
        replicas[given.target] = given.replicas
    return RolloutStep(tuple(sorted(replicas.items())), serving, phase)


def _drained_replicas(given: RolloutInput, item: RevisionFacts, *, confirmed: bool) -> int | None:
    """Replicas of a revision that is not wanted any more, None when it goes."""
    if not item.exists:
        return None
    if item.pods == 0 or (item.ready == 0 and item.inflight == 0):
        return None
    if not confirmed:
        return item.desired
    if item.inflight > 0 and not given.drain_overdue:
        return item.desired
    return 0
