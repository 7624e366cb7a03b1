"""What the scheduler costs a step: plan and commit, and with what a runner builds from the plan, without a model.

Each case has 256 rows; figures are process time of single steps (fastest, median, mean and 95th percentile), beside a
fixed Python loop that tells how fast the machine is. The target holds for decodes; drafts, ends and starts are shown.
Writes `results/scheduler.json`; `--quick` runs few steps and writes nothing.
"""

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from forebay.engine.plan import StepPlan
from forebay.engine.request import DraftKind, Speculation
from forebay.engine.runner.inputs import step_inputs
from forebay.engine.runner.runner import no_grammar
from forebay.engine.runner.slots import SlotTable
from forebay.engine.scheduler import Scheduler
from scheduler_build import request
from scheduler_turns import DECODES, ONE_GROUP, TWO_GROUPS, decoding_scheduler, process_seconds, reference_loop, turn

RESULT = Path(__file__).parent / "results" / "scheduler.json"
TARGET_MS = 1.0
VOCABULARY = 1000


@dataclass(frozen=True)
class Figure:
    """Cost of one step in a case; `loops` is the median as a share of the fixed loop."""

    case: str
    fastest_ms: float
    median_ms: float
    mean_ms: float
    p95_ms: float
    loops: float
    target_ms: float | None

    @property
    def missed(self) -> bool:
        """Whether a target is not reached."""
        return self.target_ms is not None and self.median_ms > self.target_ms


class Build:
    """What a runner does with a plan before the model: tables and token arrays."""

    def __init__(self) -> None:
        self._slots = SlotTable(DECODES, VOCABULARY, no_grammar)

    def __call__(self, plan: StepPlan) -> None:
        slots = np.array(plan.slots, dtype=np.int64)
        tables = self._slots.tables(slots, plan.page_tables)
        known = self._slots.fill_tokens(np.array(plan.tokens, dtype=np.int64), np.repeat(slots, plan.counts))
        step_inputs(plan, known, [[] for _ in plan.slots], tables)


def steady(scheduler: Scheduler, hits: int = 0, *, build: bool = False) -> Callable[[], None]:
    """Steps of a scheduler whose rows go on."""
    prepare = Build() if build else None
    return lambda: turn(scheduler, hits, prepare)


def churning(scheduler: Scheduler) -> Callable[[], None]:
    """Steps in each of which four requests end and four come, as at 64 tokens a request."""
    serial = iter(range(10_000, 1_000_000))
    oldest = iter(range(DECODES))

    def step() -> None:
        for _ in range(4):
            number = next(serial)
            scheduler.add(request(number, range(number, number + 155), max_new_tokens=64), 0.0)
            if (old := next(oldest, None)) is not None:
                scheduler.abort(old, 0.0)
        turn(scheduler)

    return step


def with_queue(scheduler: Scheduler, waiting: int) -> Scheduler:
    """The same scheduler with that many long prompts behind its rows."""
    for number in range(1000, 1000 + waiting):
        scheduler.add(request(number, range(number, number + 900), tenant=str(number % 20)), 0.0)
    return scheduler


def cases() -> dict[str, Callable[[], None]]:
    """Every case with what makes one of its steps."""
    drafts = Speculation(DraftKind.NGRAM, 4)
    return {
        "decode, one group": steady(decoding_scheduler(ONE_GROUP)),
        "decode, full and window group": steady(decoding_scheduler(TWO_GROUPS, context_tokens=200)),
        "decode and build, one group": steady(decoding_scheduler(ONE_GROUP), build=True),
        "decode and build, full and window group": steady(
            decoding_scheduler(TWO_GROUPS, context_tokens=200), build=True
        ),
        "decode, 2000 requests of 20 keys wait": steady(with_queue(decoding_scheduler(ONE_GROUP), 2000)),
        "decode, all rows may draft and rest": steady(decoding_scheduler(ONE_GROUP, drafts)),
        "all rows may draft and every draft is right": steady(decoding_scheduler(TWO_GROUPS, drafts), hits=4),
        "four requests end and four start in each step": churning(decoding_scheduler(ONE_GROUP)),
    }


def measure(case: str, step: Callable[[], None], steps: int, loop_s: float) -> Figure:
    """Run `steps` steps of a case."""
    for _ in range(10):
        step()
    costs_ms = sorted(1e3 * process_seconds(step) for _ in range(steps))
    median_ms = statistics.median(costs_ms)
    return Figure(
        case=case,
        fastest_ms=round(costs_ms[0], 4),
        median_ms=round(median_ms, 4),
        mean_ms=round(statistics.mean(costs_ms), 4),
        p95_ms=round(costs_ms[int(0.95 * steps)], 4),
        loops=round(median_ms / 1e3 / loop_s, 4),
        target_ms=TARGET_MS if case.startswith("decode") else None,
    )


def main() -> int:
    """Run all cases, print and write the figures; the exit code is the number of targets missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps; writes nothing")
    arguments = parser.parse_args()
    steps = 20 if arguments.quick else 180
    loop_s = statistics.median(process_seconds(reference_loop) for _ in range(40))
    figures = [measure(case, step, steps, loop_s) for case, step in cases().items()]
    for figure in figures:
        print(
            f"{figure.case:45} fastest {figure.fastest_ms:6.3f}  median {figure.median_ms:6.3f}  "
            f"mean {figure.mean_ms:6.3f}  p95 {figure.p95_ms:6.3f} ms  {figure.loops:.3f} loops"
        )
    if not arguments.quick:
        machine = {"machine": platform.processor() or platform.machine(), "python": platform.python_version()}
        result = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            **machine,
            "rows": DECODES,
            "loop_ms": round(loop_s * 1e3, 3),
            "figures": [asdict(figure) for figure in figures],
        }
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return sum(figure.missed for figure in figures)


if __name__ == "__main__":
    sys.exit(main())
