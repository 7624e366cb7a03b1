"""From a plan and its drafts to the arrays that an executor takes. Whole-array numpy; no Python per token.

Drafted tokens follow their row's own, so that a row with k drafts computes 1 + k positions and wants logits at each.
"""

from collections.abc import Sequence

import numpy as np

from forebay.engine.plan import StepPlan
from forebay.engine.runner.executor import IntArray, StepInputs, TableArray


def step_inputs(
    plan: StepPlan, known: IntArray, drafts: Sequence[Sequence[int]], tables: tuple[TableArray, ...]
) -> StepInputs:
    """Inputs for all rows of `plan`; `known` are its tokens with none left on the device, `drafts` has one entry a row.

    `sampled` are the last 1 + len(draft) tokens of each row with `samples`.
    """
    starts = np.array(plan.starts, dtype=np.int64)
    counts = np.array(plan.counts, dtype=np.int64)
    drafted = np.array([len(draft) for draft in drafts], dtype=np.int64)
    tokens = known
    if drafted.any():
        flat = [token for draft in drafts for token in draft]
        tokens = np.insert(known, np.repeat(np.cumsum(counts), drafted), flat)
        counts = counts + drafted
    ends = np.cumsum(counts)
    positions = np.arange(len(tokens)) + np.repeat(starts + counts - ends, counts)
    sampled = np.flatnonzero(plan.samples)
    wanted = 1 + drafted[sampled]
    return StepInputs(tokens, positions, starts, counts, tables, _runs(ends[sampled] - wanted, wanted))


def rows_of(inputs: StepInputs, rows: IntArray) -> StepInputs:
    """The part of `inputs` that belongs to `rows`, ascending."""
    ends = np.cumsum(inputs.counts)
    flat = _runs((ends - inputs.counts)[rows], inputs.counts[rows])
    return StepInputs(
        tokens=inputs.tokens[flat],
        positions=inputs.positions[flat],
        starts=inputs.starts[rows],
        counts=inputs.counts[rows],
        tables=tuple(table[rows] for table in inputs.tables),
        sampled=np.flatnonzero(np.isin(flat, inputs.sampled)),
    )


def _runs(firsts: IntArray, lengths: IntArray) -> IntArray:
    """first, first + 1, ... for each run, one after the other."""
    offsets = np.cumsum(lengths) - lengths
    places: IntArray = np.arange(int(lengths.sum())) + np.repeat(firsts - offsets, lengths)
    return places
