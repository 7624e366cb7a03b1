"""Exact selection of the largest values of one row of logits.

Sorting a vocabulary costs milliseconds; instead the maxima of interleaved columns give a lower bound on the wanted
value, and only the few entries that reach it are looked at. The result never depends on the bound, on batch mates or
on threads. Order everywhere: value descending, then lowest id. Entries of minus infinity are never selected.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IdArray = npt.NDArray[np.int64]

_MIN_COLUMNS = 512
_COLUMNS_PER_WANTED = 4


def largest(values: FloatArray, count: int) -> IdArray:
    """Ids, ascending, of the `count` >= 1 largest of `values` [n]; fewer when fewer are finite."""
    bound = _lower_bound(values, count)
    ids = np.flatnonzero(values >= bound) if bound > -np.inf else np.flatnonzero(values > -np.inf)
    return first_of(values[ids], ids, count)


def first_of(values: FloatArray, ids: IdArray, count: int) -> IdArray:
    """The `count` first of `ids` (ascending, with their `values`) by value, then id; returned ascending."""
    surplus = len(ids) - count
    if surplus <= 0:
        return ids
    least = np.partition(values, surplus)[surplus]
    kept = values > least
    tied = np.flatnonzero(values == least)
    kept[tied[: count - np.count_nonzero(kept)]] = True
    first: IdArray = ids[kept]
    return first


def in_order(values: FloatArray, ids: IdArray) -> IdArray:
    """`ids` (ascending, with their `values`) by value descending, then id."""
    order: IdArray = np.argsort(-values, kind="stable")
    return ids[order]


def _lower_bound(values: FloatArray, count: int) -> float:
    """A number that at least `count` of the values reach, minus infinity when there are not so many."""
    size = len(values)
    if count >= size:
        return -np.inf
    columns = max(_MIN_COLUMNS, _COLUMNS_PER_WANTED * count)
    depth = size // columns
    # A column stands for one value at least, so the count-th largest of the column maxima is reached count times.
    tops = values[: depth * columns].reshape(depth, columns).max(axis=0) if depth > 1 else values
    place = len(tops) - count
    return float(np.partition(tops, place)[place])
