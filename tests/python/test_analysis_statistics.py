# SPDX-License-Identifier: BSD-3-Clause
"""Means, differences, ratios: against values worked out by hand, scipy, and simulation."""

from __future__ import annotations

import math
import random
from collections import Counter
from statistics import fmean

import pytest
from scipy import stats
from userblk.analysis.statistics import (
    ALPHA,
    Interval,
    clustered_share,
    difference_interval,
    holm,
    mean_interval,
    quantile_interval,
    ratio_interval,
    ratio_of_means,
    share_interval,
    t_quantile,
    welch_p,
)


def test_mean_of_three_by_hand() -> None:
    # mean 2, s = 1, half = 4.302653 * 1 / sqrt(3)
    interval = mean_interval([1.0, 2.0, 3.0])
    assert interval.value == 2.0
    assert interval.half == pytest.approx(2.484138, abs=1e-6)
    assert (interval.low, interval.high) == pytest.approx((-0.484138, 4.484138), abs=1e-6)


def test_one_run_has_no_interval() -> None:
    assert mean_interval([7.0]) == Interval(7.0)
    assert difference_interval([7.0], [5.0, 6.0]) == Interval(1.5)
    assert ratio_interval([7.0, 9.0], [4.0]) == Interval(2.0)
    assert mean_interval([7.0]).half is None


@pytest.mark.parametrize("degrees", [1, 2, 4, 9.7, 200])
def test_quantile_is_scipys(degrees: float) -> None:
    assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-12)


def test_mean_interval_is_scipys() -> None:
    sample = [10.2, 9.7, 11.1, 10.0, 10.4]
    expected = stats.t.interval(0.95, 4, loc=10.28, scale=stats.sem(sample))
    interval = mean_interval(sample)
    assert (interval.low, interval.high) == pytest.approx(expected, rel=1e-12)


def test_difference_agrees_with_scipys_welch_test() -> None:
    a, b = [10.2, 9.7, 11.1, 10.0], [14.0, 12.5, 19.0]
    interval = difference_interval(a, b)
    assert interval.value == pytest.approx(10.25 - 45.5 / 3)
    # The test of "the difference is this end of the interval" has p = 5 %.
    for end in (interval.low, interval.high):
        assert end is not None
        assert stats.ttest_ind([x - end for x in a], b, equal_var=False).pvalue == pytest.approx(0.05)


def test_ends_of_the_ratio_solve_fiellers_equation() -> None:
    a, b = [8.1, 7.7, 8.6], [10.2, 9.7, 10.9, 10.1]
    interval = ratio_interval(a, b)
    assert interval is not None and interval.low is not None and interval.high is not None
    assert interval.low < interval.value < interval.high
    top, bottom = sum(a) / 3, sum(b) / 4
    va, vb = stats.sem(a) ** 2, stats.sem(b) ** 2
    r = top / bottom
    degrees = (va + r * r * vb) ** 2 / (va**2 / 2 + (r * r * vb) ** 2 / 3)
    t = stats.t.ppf(0.975, degrees)
    for end in (interval.low, interval.high):
        assert (top - end * bottom) ** 2 == pytest.approx(t * t * (va + end * end * vb))


def test_ratio_without_spread_in_the_baseline_by_hand() -> None:
    # Baseline exactly 4: the interval is that of the mean, divided by 4.
    interval = ratio_interval([1.0, 2.0, 3.0], [4.0, 4.0, 4.0])
    assert interval is not None and interval.half == pytest.approx(2.484138 / 4, abs=1e-6)


def test_constant_samples_have_a_ratio_without_width() -> None:
    assert ratio_interval([3.0, 3.0], [2.0, 2.0]) == Interval(1.5, 1.5, 1.5)
    assert difference_interval([3.0, 3.0], [2.0, 2.0]) == Interval(1.0, 1.0, 1.0)


def test_a_baseline_that_may_be_zero_gives_no_finite_interval() -> None:
    assert ratio_interval([3.0, 3.1, 2.9], [0.1, 5.0, -3.0]) == Interval(pytest.approx(3.0 / 0.7))  # type: ignore[arg-type]
    assert ratio_interval([3.0, 3.1], [0.0, 0.0]) is None


def test_the_ratio_of_two_means_is_not_linearised() -> None:
    """Only their intervals are known: each mean's half width stands for its share of Fieller's equation."""
    top, bottom = Interval(10.0, 9.0, 11.0), Interval(5.0, 3.0, 7.0)
    ratio = ratio_of_means(top, bottom)
    assert ratio is not None and ratio.low is not None and ratio.high is not None
    for end in (ratio.low, ratio.high):
        assert (10 - end * 5) ** 2 == pytest.approx(1 + end * end * 4)
    assert ratio.high - ratio.value > ratio.value - ratio.low
    assert ratio_of_means(top, Interval(5.0, -0.1, 10.1)) == Interval(2.0)
    assert ratio_of_means(top, Interval(5.0)) == ratio_of_means(Interval(10.0), bottom) == Interval(2.0)
    assert ratio_of_means(top, Interval(0.0, 0.0, 0.0)) is None


def test_a_ratio_of_means_covers_the_true_one() -> None:
    """As often above it as below: of a linearised interval, which is symmetric, two thirds of the misses are above."""
    rng, missed = random.Random(1), Counter[str]()
    for _ in range(4000):
        a, b = ([rng.gauss(1, spread) for _ in range(5)] for spread in (0.015, 0.15))
        ratio = ratio_of_means(mean_interval(a), mean_interval(b))
        if ratio is not None and ratio.low is not None and ratio.high is not None:
            missed["below"] += ratio.high < 1
            missed["above"] += ratio.low > 1
    assert {side: count / 4000 for side, count in missed.items()} == pytest.approx(
        {"below": 0.025, "above": 0.025}, abs=0.007
    )


def test_scaled_keeps_missing_ends() -> None:
    assert Interval(0.9, 0.8, 1.1).scaled(100, -100).half == pytest.approx(20.0)
    assert Interval(0.9).scaled(100, -100) == Interval(pytest.approx(-10.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("n", "m", "spread", "spread_native"), [(3, 3, 0.05, 0.05), (5, 5, 0.2, 0.05), (3, 5, 0.1, 0.2)]
)
def test_intervals_cover_the_truth(n: int, m: int, spread: float, spread_native: float) -> None:
    """In 95 % of campaigns: 3000 simulated ones with a fixed seed, standard error 0.4 points."""
    rng = random.Random(20211)
    trials, ratio_hits, difference_hits = 3000, 0, 0
    for _ in range(trials):
        native = [rng.gauss(100.0, 100.0 * spread_native) for _ in range(m)]
        system = [rng.gauss(60.0, 60.0 * spread) for _ in range(n)]
        ratio = ratio_interval(system, native)
        assert ratio is not None
        ratio_hits += ratio.low is None or ratio.high is None or ratio.low <= 0.6 <= ratio.high
        difference = difference_interval(system, native)
        assert difference.low is not None and difference.high is not None
        difference_hits += difference.low <= -40.0 <= difference.high
    assert 0.93 <= ratio_hits / trials <= 0.985
    assert 0.93 <= difference_hits / trials <= 0.985


# ---- tests of differences --------------------------------------------------------------


def test_welchs_test_is_scipys() -> None:
    a, b = [10.2, 9.7, 11.1, 10.0], [14.0, 12.5, 19.0]
    assert welch_p(a, b) == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue, rel=1e-9)


def test_welchs_test_needs_two_runs_of_each() -> None:
    assert welch_p([1.0], [2.0, 3.0]) is None and welch_p([1.0, 2.0], [3.0]) is None
    assert welch_p([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert welch_p([1.0, 1.0], [2.0, 2.0]) == 0.0


def test_holm_by_hand() -> None:
    # 4 x 0.01, 3 x 0.02, then 2 x 0.03 and 1 x 0.5; none smaller than the one before.
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.04, 0.04]) == pytest.approx([0.08, 0.08])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_clusters_that_agree_count_as_one_trial() -> None:
    """Three tests of each of 40 cells that alarm together are worth 40; independent ones 120."""
    together = clustered_share([(3, 3)] * 4 + [(3, 0)] * 36)
    assert together.low == pytest.approx(share_interval(4, 40).low, rel=0.05)
    alone = clustered_share([(3, 1)] * 12 + [(3, 0)] * 28)
    assert alone.high == pytest.approx(share_interval(12, 120).high, rel=0.05)
    assert clustered_share([(3, 0)] * 40) == share_interval(0, 40)


def test_share_interval_is_scipys() -> None:
    for hits, trials in ((0, 20), (3, 20), (20, 20), (14, 285)):
        expected = stats.binomtest(hits, trials).proportion_ci(method="exact")
        interval = share_interval(hits, trials)
        assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


# ---- by simulation, with fixed seeds ------------------------------------------------------


@pytest.mark.parametrize("n", [5, 10, 20, 30])
def test_coverage_is_94_to_96_percent(n: int) -> None:
    """The mean's interval and the ratio's; and false alarms of the test. 10,000 campaigns, standard error 0.22 %."""
    rng = random.Random(n)
    trials, mean_hits, ratio_hits, alarms = 10_000, 0, 0, 0
    for _ in range(trials):
        native = [rng.gauss(100.0, 5.0) for _ in range(n)]
        system = [rng.gauss(60.0, 6.0) for _ in range(n)]
        again = [rng.gauss(100.0, 8.0) for _ in range(n)]
        mean = mean_interval(native)
        ratio = ratio_interval(system, native)
        p = welch_p(again, native)
        assert mean.low is not None and mean.high is not None and p is not None
        assert ratio is not None and ratio.low is not None and ratio.high is not None
        mean_hits += mean.low <= 100.0 <= mean.high
        ratio_hits += ratio.low <= 0.6 <= ratio.high
        alarms += p <= ALPHA
    assert 0.94 <= mean_hits / trials <= 0.96
    assert 0.94 <= ratio_hits / trials <= 0.96
    assert 0.04 <= alarms / trials <= 0.06


def autocorrelated(rng: random.Random, mean: float, phi: float, spread: float, length: int) -> list[float]:
    """An AR(1) series, begun in its steady state."""
    shock = spread * math.sqrt(1 - phi * phi)
    value, values = rng.gauss(0.0, spread), []
    for _ in range(length):
        values.append(mean + value)
        value = phi * value + rng.gauss(0.0, shock)
    return values


def test_the_run_as_unit_protects_from_autocorrelation() -> None:
    """Five runs of 120 intervals each of which resembles the one before, in a machine that is a little different each
    time: an interval from all 600 values misses the truth most of the time, that from the five means does not."""
    rng = random.Random(7)
    trials, by_run, pooled = 2000, 0, 0
    for _ in range(trials):
        runs = [autocorrelated(rng, rng.gauss(100.0, 1.0), 0.9, 5.0, 120) for _ in range(5)]
        of_runs = mean_interval([fmean(run) for run in runs])
        of_all = mean_interval([value for run in runs for value in run])
        assert of_runs.low is not None and of_runs.high is not None
        assert of_all.low is not None and of_all.high is not None
        by_run += of_runs.low <= 100.0 <= of_runs.high
        pooled += of_all.low <= 100.0 <= of_all.high
    assert 0.935 <= by_run / trials <= 0.965  # standard error 0.5 %
    assert pooled / trials < 0.5


@pytest.mark.parametrize(("count", "disks"), [(3, 64), (10, 64), (30, 8)])
def test_the_cycle_as_unit_protects_from_disks_that_come_together(count: int, disks: int) -> None:
    """Disks of one cycle share half of their variance: a median's interval from all disks as if each had come alone
    misses the truth far more often than said, and that of cycles does not."""
    rng = random.Random(count)
    trials, by_cycle, pooled = 400, 0, 0
    for _ in range(trials):
        cycles = []
        for _ in range(count):
            together = rng.gauss(0, 1)
            cycles.append([together + rng.gauss(0, 1) for _ in range(disks)])
        of_cycles = quantile_interval(cycles, 0.5)
        of_all = quantile_interval([[value] for cycle in cycles for value in cycle], 0.5)
        assert of_all.low is not None and of_all.high is not None
        low, high = (-math.inf if of_cycles.low is None else of_cycles.low), of_cycles.high
        by_cycle += low <= 0 <= (math.inf if high is None else high)
        pooled += of_all.low <= 0 <= of_all.high
    assert by_cycle / trials >= 0.94  # standard error 1.1 %; wider where three cycles tell little
    assert pooled / trials < 0.75


def test_holm_keeps_false_alarms_of_a_whole_table_at_5_percent() -> None:
    """Forty cells without a difference: uncorrected, most tables have an alarm."""
    rng = random.Random(11)
    trials, plain, corrected = 1500, 0, 0
    for _ in range(trials):
        values = []
        for _ in range(40):
            p = welch_p([rng.gauss(0, 1) for _ in range(5)], [rng.gauss(0, 1) for _ in range(5)])
            assert p is not None
            values.append(p)
        plain += min(values) <= ALPHA
        corrected += min(holm(values)) <= ALPHA
    assert plain / trials > 0.75
    assert corrected / trials <= 0.065
