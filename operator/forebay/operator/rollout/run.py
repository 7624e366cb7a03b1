"""One run from a stable revision to a candidate: its durable state, its phases, and the moves between them.

The state is what stands in a Rollout's status; everything else is recomputed in every pass. A phase changes only
through `Run.enter`, which refuses what the table does not list. Finished phases have no way out: a further attempt is
a new run.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from forebay.contract.errors import Bug


class RunPhase(enum.StrEnum):
    """Where a run is."""

    PENDING = "Pending"
    PREFLIGHT = "Preflight"
    PROGRESSING = "Progressing"
    SOAKING = "Soaking"
    ROLLING_BACK = "RollingBack"
    COMPLETED = "Completed"
    ROLLED_BACK = "RolledBack"
    SUPERSEDED = "Superseded"


FINISHED: Final = frozenset({RunPhase.COMPLETED, RunPhase.ROLLED_BACK, RunPhase.SUPERSEDED})

MOVES: Final[Mapping[RunPhase, frozenset[RunPhase]]] = MappingProxyType(
    {
        RunPhase.PENDING: frozenset({RunPhase.PREFLIGHT, RunPhase.SUPERSEDED}),
        RunPhase.PREFLIGHT: frozenset({RunPhase.PROGRESSING, RunPhase.ROLLED_BACK, RunPhase.SUPERSEDED}),
        RunPhase.PROGRESSING: frozenset({RunPhase.SOAKING, RunPhase.ROLLING_BACK}),
        RunPhase.SOAKING: frozenset({RunPhase.COMPLETED, RunPhase.ROLLING_BACK}),
        RunPhase.ROLLING_BACK: frozenset({RunPhase.ROLLED_BACK, RunPhase.SUPERSEDED}),
        RunPhase.COMPLETED: frozenset(),
        RunPhase.ROLLED_BACK: frozenset(),
        RunPhase.SUPERSEDED: frozenset(),
    }
)
"""The phases that may follow each phase."""


class End(enum.StrEnum):
    """Why a run goes back; decides how it ends and whether its candidate is rejected."""

    GATE_FAILED = "GateFailed"
    DEADLINE = "ProgressDeadlineExceeded"
    ABORTED = "Aborted"
    REVERTED = "Reverted"
    REPLACED = "Replaced"

    @property
    def rejects(self) -> bool:
        """Whether the candidate may not be tried again without `retry` or a changed spec."""
        return self in (End.GATE_FAILED, End.DEADLINE, End.ABORTED)


@dataclass(frozen=True, slots=True)
class Run:
    """State of a run.

    `step` counts from 0 and stays where it was when the run left it. `since` is when the phase or step was entered,
    `confirmed_at` when the step's capacity and traffic were first seen at every router, None before. `end` is set from
    the moment the run turns back.
    """

    stable: str
    candidate: str
    phase: RunPhase
    since: datetime
    step: int = 0
    confirmed_at: datetime | None = None
    paused: bool = False
    end: End | None = None
    message: str = ""

    @property
    def finished(self) -> bool:
        """Whether nothing can change any more."""
        return self.phase in FINISHED

    def enter(self, phase: RunPhase, now: datetime, message: str = "") -> "Run":
        """The run in another phase; raises `Bug` for a move that the table does not list."""
        if phase not in MOVES[self.phase]:
            raise Bug(f"a run cannot go from {self.phase} to {phase}")
        return replace(self, phase=phase, since=now, confirmed_at=None, message=message)

    def next_step(self, now: datetime) -> "Run":
        """The run at its next step."""
        return replace(self, step=self.step + 1, since=now, confirmed_at=None, message="")

    def turn_back(self, end: End, now: datetime, message: str) -> "Run":
        """The run on its way back for this reason; before any pod was touched it ends at once."""
        if self.phase in (RunPhase.PENDING, RunPhase.PREFLIGHT):
            phase = RunPhase.ROLLED_BACK if end.rejects and self.phase is RunPhase.PREFLIGHT else RunPhase.SUPERSEDED
            return replace(self.enter(phase, now, message), end=end)
        return replace(self.enter(RunPhase.ROLLING_BACK, now, message), end=end)
