"""Whether the operator is alive, judged by what it has seen and done rather than by the process answering.

Three things can be wrong while the process looks well: a pass hangs, due keys wait for ever, or a watch is dead and
delivers nothing. The last is found by comparing the resource versions that the watch delivered with those that the
periodic full list (`sweep`) sees: an object that stays at a version the watch never showed, over a whole period, means
that this watch is dead. A kubelet restarts the pod then; nothing is lost, since all state is in the cluster.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from forebay.contract.clock import Clock
from forebay.operator.cluster import Json
from forebay.operator.queue import KeyedQueue


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """Ages in seconds above which the operator counts as dead."""

    pass_s: float = 120.0
    wait_s: float = 300.0
    sweep_s: float = 900.0


class WatchBook:
    """Which version of each object the watches have delivered, and which objects they seem to have missed."""

    def __init__(self) -> None:
        self._delivered: dict[str, dict[str, str]] = {}
        self._missed: dict[str, dict[str, str]] = {}
        self._absent: dict[str, set[str]] = {}
        self._dead: dict[str, str] = {}

    def delivered(self, kind: str, obj: Json, *, deleted: bool) -> None:
        """Note one watch event."""
        metadata = obj["metadata"]
        versions = self._delivered.setdefault(kind, {})
        if deleted:
            versions.pop(metadata["uid"], None)
        else:
            versions[metadata["uid"]] = metadata["resourceVersion"]

    def swept(self, kind: str, objects: Iterable[Json]) -> None:
        """Compare a full list with what the watch has delivered; two lists in a row must agree that it missed one."""
        delivered = self._delivered.setdefault(kind, {})
        listed = {o["metadata"]["uid"]: o["metadata"]["resourceVersion"] for o in objects}
        missed = {uid: version for uid, version in listed.items() if delivered.get(uid) != version}
        before = self._missed.get(kind, {})
        stale = sorted(uid for uid, version in missed.items() if before.get(uid) == version)
        self._missed[kind] = missed
        # An object may be younger than this list, so only one that two lists lack is forgotten.
        absent = delivered.keys() - listed.keys()
        for uid in absent & self._absent.get(kind, set()):
            del delivered[uid]
        self._absent[kind] = absent
        if stale:
            self._dead[kind] = stale[0]
        else:
            self._dead.pop(kind, None)

    def dead(self) -> dict[str, str]:
        """Kinds whose watch is dead, each with the uid of an object it missed."""
        return dict(self._dead)


class Probe:
    """Answers the liveness probe."""

    def __init__(self, clock: Clock, queue: KeyedQueue, book: WatchBook, limits: ProbeLimits) -> None:
        self._clock = clock
        self._queue = queue
        self._book = book
        self._limits = limits
        self._leads = False
        self._watches = False
        self._sweep_s = clock.monotonic_s()
        self._event_s = clock.monotonic_s()
        self._pass_s = clock.monotonic_s()

    def leading(self) -> None:
        """Passes and sweeps are expected from now on."""
        self._leads = True
        self._sweep_s = self._clock.monotonic_s()

    def watching(self) -> None:
        """The API server knows our kinds and the watches have been started."""
        self._watches = True

    def saw_event(self) -> None:
        """A watch event arrived."""
        self._event_s = self._clock.monotonic_s()

    def finished_pass(self) -> None:
        """A pass ended, well or not."""
        self._pass_s = self._clock.monotonic_s()

    def finished_sweep(self) -> None:
        """A full look at all resources ended, well or not: an API server that is down is not our death."""
        self._sweep_s = self._clock.monotonic_s()

    def event_age_s(self) -> float:
        """Seconds since the last watch event."""
        return self._clock.monotonic_s() - self._event_s

    def pass_age_s(self) -> float:
        """Seconds since the last pass ended."""
        return self._clock.monotonic_s() - self._pass_s

    def unready(self) -> str | None:
        """Why this process does not do its work yet or any more, or None."""
        return self.complaint() if self._watches else "the API server does not serve Forebay's kinds yet"

    def complaint(self) -> str | None:
        """Why this process should be restarted, or None."""
        for kind, uid in self._book.dead().items():
            return f"the watch of {kind} is dead: it never showed the current version of object {uid}"
        if not self._leads:
            return None
        limits = self._limits
        if (age := self._queue.longest_pass_s()) > limits.pass_s:
            return f"a pass has been running for {age:.0f} s"
        if (age := self._queue.longest_wait_s()) > limits.wait_s:
            return f"a due key has been waiting for {age:.0f} s"
        if (age := self._clock.monotonic_s() - self._sweep_s) > limits.sweep_s:
            return f"the last full look was {age:.0f} s ago"
        return None
