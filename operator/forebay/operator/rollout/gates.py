"""Verdicts of gates and how several make one judgement. Pure.

A gate answers Pass, Hold, Fail or Inconclusive with evidence that a person can read. Fail closed: only when every gate
passes does a step go on; one failure turns the run back; anything else waits, and what cannot be asked holds.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Verdict(enum.StrEnum):
    """What a gate says."""

    PASS = "Pass"  # noqa: S105 - a verdict, not a password
    HOLD = "Hold"
    FAIL = "Fail"
    INCONCLUSIVE = "Inconclusive"


@dataclass(frozen=True, slots=True)
class GateResult:
    """One gate's verdict; `message` says why in one sentence, `evidence` has the numbers behind it."""

    gate: str
    verdict: Verdict
    message: str
    evidence: tuple[tuple[str, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As it stands in a Rollout's status."""
        document: dict[str, Any] = {"gate": self.gate, "verdict": str(self.verdict), "message": self.message}
        if self.evidence:
            document["evidence"] = [{"name": name, "value": f"{value:g}"} for name, value in self.evidence]
        return document


@dataclass(frozen=True, slots=True)
class Judgement:
    """All results of a step, and what follows from them."""

    verdict: Verdict
    message: str
    results: tuple[GateResult, ...] = ()


def judge(results: Sequence[GateResult]) -> Judgement:
    """The worst verdict counts, in the order Fail, Inconclusive, Hold, Pass; no gates pass."""
    for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.HOLD):
        found = [item for item in results if item.verdict is verdict]
        if found:
            text = "; ".join(f"{item.gate}: {item.message}" for item in found)
            return Judgement(verdict, text, tuple(results))
    return Judgement(Verdict.PASS, "", tuple(results))
