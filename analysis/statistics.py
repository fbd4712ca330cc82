# SPDX-License-Identifier: BSD-3-Clause
"""Means, differences and their 95 % confidence intervals, and tests of differences.

The sample is the run: every number in a sample is one run's mean. All functions are pure. Each method and its source
is in docs/statistics.md.

The ratio of two means (throughput or latency relative to native) gets the interval of Fieller's
theorem, with the Satterthwaite degrees of freedom at the estimated ratio, because the two samples
have different variances. Fieller's interval is exact for normal means with known variance ratio,
needs neither logarithms (a mean of logarithms estimates the geometric mean, not the paper's
arithmetic one) nor a linearisation (the delta method is too narrow at three to five runs), and says
so honestly, by having no finite end, when native's mean does not differ from zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, variance

LEVEL = 0.95
ALPHA = 1 - LEVEL  # of tests


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its interval; None: there is none (a single run, or no finite end)."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def half(self) -> float | None:
        """Distance from the value to the farther end."""
        if self.low is None or self.high is None:
            return None
        return max(self.value - self.low, self.high - self.value)

    def scaled(self, factor: float, offset: float) -> Interval:
        """factor * x + offset of the value and both ends; factor is positive."""
        low, high = (None if end is None else factor * end + offset for end in (self.low, self.high))
        return Interval(factor * self.value + offset, low, high)


@lru_cache(maxsize=4096)
def t_quantile(degrees: float) -> float:
    """Two-sided 95 % quantile of Student's t."""
    from scipy.special import stdtrit  # which takes long to load

    return float(stdtrit(degrees, 0.5 + LEVEL / 2))


def mean_interval(sample: Sequence[float]) -> Interval:
    """Sample mean and Student-t interval with n-1 degrees of freedom. sample is not empty."""
    mean = fmean(sample)
    if len(sample) < 2:
        return Interval(mean)
    half = t_quantile(len(sample) - 1) * math.sqrt(variance(sample, mean) / len(sample))
    return Interval(mean, mean - half, mean + half)


def _degrees(a: float, n: int, b: float, m: int) -> float:
    """Satterthwaite's degrees of freedom of a + b, variances of means of n and m values."""
    return (a + b) ** 2 / (a * a / (n - 1) + b * b / (m - 1))


def difference_interval(sample: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Difference of the means and Welch's interval. Neither sample is empty."""
    n, m = len(sample), len(baseline)
    difference = fmean(sample) - fmean(baseline)
    if n < 2 or m < 2:
        return Interval(difference)
    a, b = variance(sample) / n, variance(baseline) / m
    if a + b == 0:
        return Interval(difference, difference, difference)
    half = t_quantile(_degrees(a, n, b, m)) * math.sqrt(a + b)
    return Interval(difference, difference - half, difference + half)


def ratio_interval(sample: Sequence[float], baseline: Sequence[float]) -> Interval | None:
    """Ratio of the means and Fieller's interval. Neither sample is empty.

    None if the baseline's mean is 0; no ends if it does not differ from 0.
    """
    n, m = len(sample), len(baseline)
    top, bottom = fmean(sample), fmean(baseline)
    if bottom == 0:
        return None
    ratio = top / bottom
    if n < 2 or m < 2:
        return Interval(ratio)
    a, b = variance(sample) / n, variance(baseline) / m
    spread = a + ratio * ratio * b
    if spread == 0:
        return Interval(ratio, ratio, ratio)
    t = t_quantile(_degrees(a, n, ratio * ratio * b, m))
    return _fieller(ratio, bottom, t * t * a, t * t * b)


def ratio_of_means(top: Interval, bottom: Interval) -> Interval | None:
    """Ratio of two independent means of which the intervals are known, not the samples.

    Fieller's with the square of each mean's half width for t^2 and the variance of it, so that each keeps its own
    degrees of freedom (Donner, Zou 2012). None if the lower mean is 0; no ends if it may be, or an interval is missing.
    """
    if bottom.value == 0:
        return None
    ratio = top.value / bottom.value
    if top.half is None or bottom.half is None:
        return Interval(ratio)
    return _fieller(ratio, bottom.value, top.half**2, bottom.half**2)


def _fieller(ratio: float, bottom: float, a: float, b: float) -> Interval:
    """The ratio with the roots r of (top - r bottom)^2 = a + r^2 b; without, where bottom^2 is not more than b."""
    g = b / (bottom * bottom)
    if g >= 1:
        return Interval(ratio)
    root = math.sqrt(max(0.0, a + ratio * ratio * b - g * a)) / abs(bottom)
    return Interval(ratio, (ratio - root) / (1 - g), (ratio + root) / (1 - g))


def welch_p(sample: Sequence[float], baseline: Sequence[float]) -> float | None:
    """Two-sided p of Welch's test that both have the same mean; None if either has fewer than two values."""
    n, m = len(sample), len(baseline)
    if n < 2 or m < 2:
        return None
    difference = fmean(sample) - fmean(baseline)
    a, b = variance(sample) / n, variance(baseline) / m
    if a + b == 0:
        return 1.0 if difference == 0 else 0.0
    from scipy.special import stdtr  # which takes long to load

    return 2 * float(stdtr(_degrees(a, n, b, m), -abs(difference) / math.sqrt(a + b)))


def holm(values: Sequence[float]) -> list[float]:
    """p values adjusted by Holm's method, in the order given: those up to ALPHA hold with that error in the family."""
    adjusted = [0.0] * len(values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = highest
    return adjusted


def _independent(clusters: Sequence[tuple[int, int]], factor: float = 1.0) -> float:
    """How many independent trials would have a share that scatters as that of clusters of (trials, hits) does.

    Never fewer than clusters, nor more than trials. Without a hit, or with nothing else, as many as clusters. factor:
    of what is found, for the error of the scatter itself.
    """
    count, trials, hits = len(clusters), sum(n for n, _ in clusters), sum(k for _, k in clusters)
    share = hits / trials
    scatter = sum((k - share * n) ** 2 for n, k in clusters)
    if count < 2 or not 0 < hits < trials:
        return float(count)
    error = scatter * count / (count - 1) / trials**2
    found = min(float(trials), share * (1 - share) / error) if error else float(trials)
    return max(float(count), factor * found)


def clustered_share(clusters: Sequence[tuple[int, int]]) -> Interval:
    """Share of hits over clusters of (trials, hits) whose trials resemble each other: Korn's and Graubard's interval.

    Clopper's and Pearson's, of as many independent trials as would scatter as much.
    """
    share = sum(k for _, k in clusters) / sum(n for n, _ in clusters)
    effective = _independent(clusters)
    return share_interval(share * effective, effective)


def quantile_interval(clusters: Sequence[Sequence[float]], share: float) -> Interval:
    """The quantile of all values, and values between which the population's lies; no end where there are too few.

    Values of one cluster resemble each other. No cluster is empty, and there is one at least. This holds for any
    distribution, as the number of independent values below its quantile is binomial (order statistics); of clustered
    ones there are as many as their share below the quantile scatters like (Woodruff; Korn, Graubard), whose shares of
    all the values are the ends. With clusters of one value, these are the order statistics.
    """
    ordered = sorted(value for cluster in clusters for value in cluster)
    size = len(ordered)
    found = ordered[min(size - 1, math.ceil(share * size) - 1)]
    below = [(len(cluster), sum(value <= found for value in cluster)) for cluster in clusters]
    # The scatter of few clusters is known badly.
    factor = (t_quantile(size - 1) / t_quantile(len(clusters) - 1)) ** 2 if len(clusters) > 1 else 1.0
    n = int(_independent(below, factor))
    from scipy.special import bdtr  # which takes long to load

    at_most = [float(value) for value in bdtr(range(n), n, share)]  # so many are below
    low = max((rank for rank in range(n) if at_most[rank] <= ALPHA / 2), default=None)
    high = min((rank for rank in range(n) if at_most[rank] >= 1 - ALPHA / 2), default=None)
    return Interval(
        found,
        None if low is None else ordered[low * size // n],
        None if high is None else ordered[-(-(high + 1) * size // n) - 1],
    )


def share_interval(hits: float, trials: float) -> Interval:
    """Share of hits and its Clopper-Pearson interval. trials is at least 1."""
    tail = ALPHA / 2
    from scipy.special import betaincinv  # which takes long to load

    low = float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - tail)) if hits < trials else 1.0
    return Interval(hits / trials, low, high)
