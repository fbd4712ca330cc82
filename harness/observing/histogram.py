# SPDX-License-Identifier: BSD-3-Clause
"""Latency histograms: merged by adding their bins, and the percentiles of what comes out.

A histogram maps a bin, named by a latency in ns as fio's json+ output and userblk-flow name theirs (docs/flow.md), to
its number of operations. Percentiles of several runs are those of their merged histogram; they are never averaged.
Standard library only: the runner uses it in a guest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

Bins = Mapping[int, int]
Name = TypeVar("Name", int, str)
TAIL = (50.0, 90.0, 99.0, 99.9, 99.99)  # the percentiles of a run's latency that its summary has
BEYOND = 10  # operations that must lie beyond a percentile for it to say anything


def merged(histograms: Iterable[Mapping[Name, int]]) -> Bins:
    """All of them as one, in order of the bins, whose names may be texts, as JSON has them."""
    counts: dict[Name, int] = defaultdict(int)
    for bins in histograms:
        for name, count in bins.items():
            counts[name] += count
    # Texts become numbers once, not in each histogram.
    return dict(sorted((int(name), count) for name, count in counts.items()))


def _rank(percent: float, total: int) -> int:
    """The nearest one, in integers: 99.9 / 100 is a little more than 0.999."""
    return -(-round(percent * 10**6) * total // 10**8)


def percentile(bins: Bins, percent: float) -> float:
    """By nearest rank, in the unit of the bins; 0 without a value."""
    wanted, seen = _rank(percent, sum(bins.values())), 0
    for value in sorted(bins):
        seen += bins[value]
        if seen >= wanted:
            return float(value)
    return 0.0


def supported(bins: Bins, percent: float) -> float | None:
    """The percentile, None where too few operations lie beyond it: it would be about the largest alone."""
    if sum(bins.values()) * (1 - percent / 100) < BEYOND - 1e-9:
        return None
    return percentile(bins, percent)


def tail_metric(percent: float) -> str:
    """The name of a percentile in summary.json."""
    return f"latency_p{percent:g}_us"


def tails(bins: Bins) -> dict[str, float | None]:
    """The percentiles of TAIL in us, of bins in ns, by their names in summary.json; None without enough beyond."""
    found = distribution(merged([bins]), TAIL)
    return {
        tail_metric(percent): None if value is None else value / 1e3 for percent, value in zip(TAIL, found, strict=True)
    }


def distribution(bins: Bins, percents: Sequence[float]) -> list[float | None]:
    """The supported percentiles, of which percents are given in rising order, in one pass."""
    total, seen = sum(bins.values()), 0
    values: list[float | None] = []
    wanted = iter(percents)
    percent = next(wanted, None)
    for value in sorted(bins):
        seen += bins[value]
        while percent is not None and seen >= _rank(percent, total):
            values.append(float(value) if total * (1 - percent / 100) >= BEYOND - 1e-9 else None)
            percent = next(wanted, None)
    return values + [None] * (len(percents) - len(values))
