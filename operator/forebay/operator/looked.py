"""What a pass knows before it decides: the snapshot, read against its owner, its revisions and its written routes.

Pure. Made once per pass by `look`; `course` decides from it where the deployment goes, `reconcile` what to write.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from forebay.api.modeldeployment import ModelDeployment
from forebay.contract.names import ROLE_ENGINE
from forebay.operator.desired.kinds import DEPLOYMENT
from forebay.operator.desired.metadata import Owner, is_ours, owner_of, revision_of, role_of
from forebay.operator.desired.pods import longest_request_s
from forebay.operator.desired.routes import RecordedRoutes, read_routes
from forebay.operator.effective import DEFAULT_MAX_SECONDS
from forebay.operator.intent import Intent, read_intent, render
from forebay.operator.observed import Observed, read_observed
from forebay.operator.references import Problem, read_deployment
from forebay.operator.revision import StoredRevision, read_revisions
from forebay.operator.rollout.plan import RevisionFacts
from forebay.operator.rollout.policy import WHOLE
from forebay.operator.rollout.record import OpenRun, Unreadable, read_runs
from forebay.operator.snapshot import DeploymentSnapshot, Json

DRAIN_SLACK_S: Final = 60
"""Beyond the longest request, until a drain no longer waits for requests that routers still report."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What a pass knows before it decides."""

    snapshot: DeploymentSnapshot
    now: datetime
    document: Json
    owner: Owner
    deployment: ModelDeployment | None
    intent: Intent | Problem
    observed: Observed
    workloads: Mapping[str, Json]
    stored: Mapping[str, StoredRevision]
    fresh: StoredRevision | None
    routes: RecordedRoutes | None
    runs: tuple[OpenRun | Unreadable, ...]

    @property
    def replicas(self) -> int:
        """Engine pods that the spec asks for."""
        if self.deployment is None or self.deployment.spec.replicas is None:
            return 1
        return self.deployment.spec.replicas

    @property
    def target(self) -> str | None:
        """The revision that the spec asks for, None while the spec cannot be realised."""
        return self.intent.revision if isinstance(self.intent, Intent) else None

    @property
    def stable(self) -> str | None:
        """The revision that was last seen serving; while a run is open, the one that it started from."""
        if self.open_run is not None:
            return self.open_run.run.stable
        return (self.document.get("status") or {}).get("stableRevision")

    @property
    def open_run(self) -> OpenRun | None:
        """The run that is not finished."""
        return next((item for item in reversed(self.runs) if isinstance(item, OpenRun) and not item.run.finished), None)

    @property
    def weights(self) -> dict[str, int]:
        """Shares of the traffic by the written routes, or all of it on the stable revision where they are lost."""
        if self.routes is None:
            return {} if self.stable is None else {self.stable: WHOLE}
        return {item.revision: item.weight for item in self.routes.routes.weights if item.weight > 0}

    @property
    def serving(self) -> str | None:
        """The revision that gets traffic; where two do, the one that a run started from."""
        weights = self.weights
        if self.open_run is not None and self.open_run.run.stable in weights:
            return self.open_run.run.stable
        return max(sorted(weights), key=lambda revision: weights[revision], default=None)

    @property
    def confirmed(self) -> bool:
        """Whether every router that takes traffic reports the written routes."""
        return self.routes is not None and self.observed.confirms(self.routes.routes.epoch)


def look(snapshot: DeploymentSnapshot, document: Json, now: datetime) -> Looked:
    """Read a snapshot."""
    owner = owner_of(document)
    read = read_deployment(document)
    intent = read_intent(document, snapshot)
    stored = read_revisions(snapshot.children, owner)
    fresh = None
    if isinstance(intent, Intent) and intent.revision not in stored:
        number = max((item.number for item in stored.values()), default=0) + 1
        rendered = render(owner, intent, number, snapshot.settings)
        fresh = read_revisions([rendered], owner)[intent.revision]
    workloads = {
        name: item
        for item in snapshot.children
        if item["kind"] == DEPLOYMENT.kind
        and role_of(item) == ROLE_ENGINE
        and is_ours(item, owner)
        and (name := revision_of(item)) is not None
    }
    return Looked(
        snapshot=snapshot,
        now=now,
        document=document,
        owner=owner,
        deployment=None if isinstance(read, Problem) else read,
        intent=intent,
        observed=read_observed(snapshot, owner),
        workloads=workloads,
        stored=stored if fresh is None else {**stored, fresh.revision: fresh},
        fresh=fresh,
        routes=read_routes((item for item in snapshot.children if is_ours(item, owner)), owner),
        runs=read_runs(snapshot.children, owner),
    )


def revision_facts(state: Looked, name: str) -> RevisionFacts:
    """What is seen of one revision."""
    observed = state.observed
    counts = observed.counts(observed.engines, name)
    workload = state.workloads.get(name)
    return RevisionFacts(
        revision=name,
        stored=name in state.stored,
        exists=workload is not None,
        desired=int(workload["spec"].get("replicas", 1)) if workload is not None else 0,
        pods=counts.live + counts.draining,
        ready=counts.ready,
        routable=observed.routable_by_all(name),
        inflight=observed.inflight(name),
    )


def drain_overdue(state: Looked) -> bool:
    """Whether the routes were written so long ago that no request of before can still run."""
    if state.routes is None:
        return False
    longest_s = DEFAULT_MAX_SECONDS
    if isinstance(state.intent, Intent):
        longest_s = longest_request_s(state.intent.effective)
    return state.now >= state.routes.since + timedelta(seconds=longest_s + DRAIN_SLACK_S)
