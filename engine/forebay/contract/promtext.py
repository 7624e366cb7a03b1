"""Counters, gauges and histograms with a Prometheus text rendering (exposition format 0.0.4).

Every series of a closed label set exists from the first scrape with value 0, so dashboards and alerts never meet a
missing name. Labels must come from closed sets; a series for an open set (an endpoint, a revision) is removed by its
owner with `forget` (register it with an empty set of values). Not thread-safe: each process updates its metrics on
one thread. Used by engine, router and operator.
"""

import itertools
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LabelValues = tuple[str, ...]


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _labels(names: Sequence[str], values: Sequence[str], *extra: str) -> str:
    parts = [f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True)]
    parts += [part for part in extra if part]
    return "{" + ",".join(parts) + "}" if parts else ""


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


class Scalar:
    """A counter or gauge family: one number for each combination of label values."""

    __slots__ = ("_help", "_kind", "_labels", "_name", "_read", "values")

    def __init__(self, name: str, kind: str, text: str, labels: Mapping[str, Sequence[str]]) -> None:
        self._name = name
        self._kind = kind
        self._help = text
        self._labels = tuple(labels)
        self._read: Callable[[], float] | None = None
        self.values: dict[LabelValues, float] = dict.fromkeys(itertools.product(*labels.values()), 0.0)

    def inc(self, *values: str, by: float = 1.0) -> None:
        """Add `by` to the series of these label values."""
        self.values[values] = self.values.get(values, 0.0) + by

    def set(self, number: float, *values: str) -> None:
        """Set the series of these label values."""
        self.values[values] = number

    def read_with(self, read: Callable[[], float]) -> None:
        """Compute the only series of an unlabelled family at scrape time."""
        self._read = read

    def forget(self, *values: str) -> None:
        """Remove a series whose subject is gone; removing an absent one is fine."""
        self.values.pop(values, None)

    def render(self, name: str = "", constant: str = "") -> list[str]:
        """The lines of this family; under another `name` and with a `constant` label for an alias."""
        if self._read is not None:
            self.values[()] = self._read()
        name = name or self._name
        lines = [f"# HELP {name} {self._help}", f"# TYPE {name} {self._kind}"]
        lines += [
            f"{name}{_labels(self._labels, values, constant)} {_number(number)}"
            for values, number in sorted(self.values.items())
        ]
        return lines


class Histogram:
    """A histogram family with fixed upper bounds, in ascending order; the +Inf bucket is added."""

    __slots__ = ("_bounds", "_buckets", "_help", "_labels", "_name", "_sums")

    def __init__(self, name: str, text: str, bounds: Sequence[float], labels: Mapping[str, Sequence[str]]) -> None:
        self._name = name
        self._help = text
        self._bounds = tuple(bounds)
        self._labels = tuple(labels)
        keys = list(itertools.product(*labels.values()))
        self._buckets: dict[LabelValues, list[int]] = {key: [0] * (len(self._bounds) + 1) for key in keys}
        self._sums: dict[LabelValues, float] = dict.fromkeys(keys, 0.0)

    def observe(self, number: float, *values: str) -> None:
        """Count one observation in the series of these label values."""
        buckets = self._buckets.get(values)
        if buckets is None:
            buckets = self._buckets[values] = [0] * (len(self._bounds) + 1)
        buckets[bisect_left(self._bounds, number)] += 1
        self._sums[values] = self._sums.get(values, 0.0) + number

    def count(self, *values: str) -> int:
        """Observations so far in the series of these label values."""
        return sum(self._buckets.get(values, ()))

    def render(self, name: str = "", constant: str = "") -> list[str]:
        """The lines of this family: cumulative buckets, sum and count for each series; see `Scalar.render`."""
        name = name or self._name
        lines = [f"# HELP {name} {self._help}", f"# TYPE {name} histogram"]
        bounds = [*(_number(bound) for bound in self._bounds), "+Inf"]
        for values, buckets in sorted(self._buckets.items()):
            for bound, total in zip(bounds, itertools.accumulate(buckets), strict=True):
                label = f'le="{bound}"'
                lines.append(f"{name}_bucket{_labels(self._labels, values, constant, label)} {total}")
            lines.append(f"{name}_sum{_labels(self._labels, values, constant)} {_number(self._sums[values])}")
            lines.append(f"{name}_count{_labels(self._labels, values, constant)} {sum(buckets)}")
        return lines


class Registry:
    """An ordered set of families; names must be unique. `labels` maps each label name to its closed set of values."""

    def __init__(self) -> None:
        self._families: dict[str, Scalar | Histogram] = {}
        self._aliases: dict[str, tuple[Scalar | Histogram, str]] = {}

    def counter(self, name: str, text: str, labels: Mapping[str, Sequence[str]] | None = None) -> Scalar:
        """A number that only rises; the name ends in `_total`."""
        return self._scalar(name, "counter", text, labels)

    def gauge(self, name: str, text: str, labels: Mapping[str, Sequence[str]] | None = None) -> Scalar:
        """A number that goes up and down."""
        return self._scalar(name, "gauge", text, labels)

    def histogram(
        self, name: str, text: str, bounds: Sequence[float], labels: Mapping[str, Sequence[str]] | None = None
    ) -> Histogram:
        """A distribution; the unit is the name's suffix."""
        family = Histogram(name, text, bounds, labels or {})
        self._add(name, family)
        return family

    def alias(self, name: str, family: Scalar | Histogram, label: str, value: str) -> None:
        """Show a family a second time under another name, with one more label of one value."""
        if name in self._families or name in self._aliases:
            raise ValueError(f"metric {name} is registered twice")
        self._aliases[name] = (family, f'{label}="{_escape(value)}"')

    def render(self) -> str:
        """The whole exposition text; ends with a newline."""
        lines = [line for family in self._families.values() for line in family.render()]
        for name, (family, constant) in self._aliases.items():
            lines += family.render(name, constant)
        return "\n".join(lines) + "\n"

    def _scalar(self, name: str, kind: str, text: str, labels: Mapping[str, Sequence[str]] | None) -> Scalar:
        family = Scalar(name, kind, text, labels or {})
        self._add(name, family)
        return family

    def _add(self, name: str, family: Scalar | Histogram) -> None:
        if name in self._families:
            raise ValueError(f"metric {name} is registered twice")
        self._families[name] = family
