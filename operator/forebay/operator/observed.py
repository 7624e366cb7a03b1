"""Counts that a pass derives from pods and router reports: recomputed whole each time, never accumulated.

Only pods of this very owner count. A router's word counts when its pod takes traffic; a router that does not answer
makes its numbers unknown, which the rollout reads as "not yet", never as "yes".
"""

from collections.abc import Iterable
from dataclasses import dataclass

from forebay.contract.names import LABEL_DEPLOYMENT_UID, ROLE_ENGINE, ROLE_ROUTER
from forebay.contract.wire import RouterReport
from forebay.operator.desired.metadata import Owner, revision_of, role_of
from forebay.operator.snapshot import DeploymentSnapshot, Json


@dataclass(frozen=True, slots=True)
class PodCounts:
    """Pods of one role and revision: `draining` ones are going away, `ready` and `live` ones are not."""

    live: int = 0
    ready: int = 0
    draining: int = 0


@dataclass(frozen=True, slots=True)
class Observed:
    """Pods and router reports of one deployment.

    - `engines`, `routers`: pods by role, in order of name.
    - `reports`: every report that could be read; `missing`: routers that take traffic but did not answer.
    - `voters`: reports of routers that take traffic, or of all routers while none does.
    """

    engines: tuple[Json, ...]
    routers: tuple[Json, ...]
    reports: tuple[RouterReport, ...]
    voters: tuple[RouterReport, ...]
    missing: tuple[str, ...]

    def counts(self, pods: Iterable[Json], revision: str | None = None) -> PodCounts:
        """Counts over `pods`, of one revision or of all."""
        mine = [pod for pod in pods if revision is None or revision_of(pod) == revision]
        live = [pod for pod in mine if is_live(pod)]
        draining = sum(is_terminating(pod) for pod in mine)
        return PodCounts(len(live), sum(is_ready(pod) for pod in live), draining)

    def confirms(self, epoch: int) -> bool:
        """Whether every router that takes traffic applied at least this epoch."""
        if not self.voters or self.missing:
            return False
        return all(report.synced and report.epoch >= epoch for report in self.voters)

    def routable_by_all(self, revision: str) -> int:
        """Pods of a revision that every router can send to; 0 while a router does not answer."""
        if not self.voters or self.missing:
            return 0
        return min(self._routable(report, revision) for report in self.voters)

    def routable_by_any(self, revision: str) -> int:
        """The most pods of a revision that one router can send to."""
        return max((self._routable(report, revision) for report in self.voters), default=0)

    def inflight(self, revision: str) -> int:
        """Requests that routers have open on a revision."""
        return sum(e.inflight for report in self.reports for e in report.endpoints if e.revision == revision)

    def _routable(self, report: RouterReport, revision: str) -> int:
        ready = {pod["metadata"]["name"] for pod in self.engines if is_live(pod) and is_ready(pod)}
        return sum(e.routable and e.revision == revision and e.pod in ready for e in report.endpoints)


def read_observed(snapshot: DeploymentSnapshot, owner: Owner) -> Observed:
    """What the snapshot's pods and router reports say about this owner."""
    pods = sorted(
        (pod for pod in snapshot.pods if (pod["metadata"].get("labels") or {}).get(LABEL_DEPLOYMENT_UID) == owner.uid),
        key=lambda pod: str(pod["metadata"]["name"]),
    )
    routers = tuple(pod for pod in pods if role_of(pod) == ROLE_ROUTER)
    by_pod = {item.pod: item.report for item in snapshot.routers}
    names = [str(pod["metadata"]["name"]) for pod in routers if is_live(pod)]
    taking_traffic = [pod["metadata"]["name"] for pod in routers if is_live(pod) and is_ready(pod)]
    asked = taking_traffic or names
    return Observed(
        engines=tuple(pod for pod in pods if role_of(pod) == ROLE_ENGINE),
        routers=routers,
        reports=tuple(report for report in by_pod.values() if report is not None),
        voters=tuple(report for name in asked if (report := by_pod.get(name)) is not None),
        missing=tuple(name for name in taking_traffic if by_pod.get(name) is None),
    )


def is_terminating(pod: Json) -> bool:
    """Whether the pod was asked to go."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_live(pod: Json) -> bool:
    """Whether the pod is neither going away nor finished."""
    return not is_terminating(pod) and (pod.get("status") or {}).get("phase") not in {"Failed", "Succeeded"}


def is_ready(pod: Json) -> bool:
    """Whether the pod's condition Ready is true."""
    return pod_condition(pod, "Ready").get("status") == "True"


def pod_condition(pod: Json, kind: str) -> Json:
    """A condition of a pod, empty where it is absent."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((item for item in conditions if item.get("type") == kind), {})
