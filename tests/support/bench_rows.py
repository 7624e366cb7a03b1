"""What the engine's benchmark found: samples of runs, and rows that hold a figure against its target.

Pure. A figure over two sides is the ratio of the medians of their samples, which took turns. Used by
`tests/bench/engine.py`.
"""

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one side; times are medians over its requests.

    `other_cpu_share` is the part of the machine that processes outside the benchmark took meanwhile.
    """

    side: str
    workload: str
    output_tokens_per_s: float
    first_token_s: float
    inter_token_s: float
    server_cpu_s: float = 0.0
    client_cpu_share: float = 0.0
    other_cpu_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """A figure, what it must reach, and whether it does. `target` None is a figure without a target."""

    name: str
    what: str
    unit: str
    figure: float
    target: float | None = None
    is_upper_bound: bool = False
    measured: dict[str, Any] = field(default_factory=dict)

    @property
    def reached(self) -> bool | None:
        """None without a target."""
        if self.target is None:
            return None
        return self.figure <= self.target if self.is_upper_bound else self.figure >= self.target

    def document(self) -> dict[str, Any]:
        """The row of the result file."""
        bound = "at most" if self.is_upper_bound else "at least"
        return {
            "name": self.name,
            "what": self.what,
            "figure": round(self.figure, 3),
            "unit": self.unit,
            "target": None if self.target is None else f"{bound} {self.target:g}",
            "reached": self.reached,
            "measured": self.measured,
        }

    def line(self) -> str:
        """The row for a person."""
        verdict = {None: "", True: "reached", False: "MISSED"}[self.reached]
        target = "" if self.target is None else f"{'<=' if self.is_upper_bound else '>='} {self.target:g}"
        return f"{self.name:24} {self.figure:9.3f} {self.unit:10} {target:9} {verdict:8} {self.what}"


class Samples:
    """All samples of a run of the benchmark."""

    def __init__(self) -> None:
        self.taken: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Keep one more."""
        self.taken.append(sample)

    def median(self, side: str, workload: str, figure: str) -> float:
        """Of a field over the samples of a side at a workload."""
        return statistics.median(self._values(side, workload, figure))

    def compare(self, sides: tuple[str, str], workload: str, figure: str) -> tuple[float, dict[str, Any]]:
        """The first side's median over the second's, and what was measured."""
        first, second = (self.median(side, workload, figure) for side in sides)
        measured = {side: spread(self._values(side, workload, figure)) for side in sides}
        return first / second, measured

    def _values(self, side: str, workload: str, figure: str) -> list[float]:
        return [getattr(sample, figure) for sample in self.taken if (sample.side, sample.workload) == (side, workload)]


def spread(values: Iterable[float]) -> dict[str, float | int]:
    """Least, median and greatest."""
    ordered = sorted(values)
    return {
        "minimum": round(ordered[0], 5),
        "median": round(statistics.median(ordered), 5),
        "maximum": round(ordered[-1], 5),
        "samples": len(ordered),
    }


def steady_inter_token_s(streams: Sequence[Sequence[float]]) -> float:
    """Median time between tokens while every stream decodes: after the last first token, before the first end."""
    begin_s = max(times[0] for times in streams)
    end_s = min(times[-1] for times in streams)
    gaps = []
    for times in streams:
        inside = [when_s for when_s in times if begin_s <= when_s <= end_s]
        gaps += [later - earlier for earlier, later in itertools.pairwise(inside)]
    return statistics.median(gaps)
