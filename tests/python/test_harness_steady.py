# SPDX-License-Identifier: BSD-3-Clause
"""Where warm-up is cut off, and which runs are steady: on made-up series with known answers."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from scipy.special import stdtrit
from userblk.harness.observing.student import half_width, t_quantile
from userblk.harness.observing.warmup import FIXED, Interval, drift, excursion, find, mser


def series(rates: Sequence[float], length: float = 0.5) -> list[Interval]:
    return [Interval(i * length, (i + 1) * length, rate * length, 100.0) for i, rate in enumerate(rates)]


def noise(count: int, seed: int, mean: float = 1000.0, deviation: float = 50.0) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(mean, deviation) for _ in range(count)]


# ---- the cut ----------------------------------------------------------------------------


def mser_by_definition(values: Sequence[float]) -> int:
    """The formula as it is written, without the sums that make it fast."""
    best, cut = math.inf, 0
    for first in range(len(values) // 2 + 1):
        rest = values[first:]
        mean = sum(rest) / len(rest)
        statistic = sum((value - mean) ** 2 for value in rest) / len(rest) ** 2
        if statistic < best * (1 - 1e-9):
            best, cut = statistic, first
    return cut


@pytest.mark.parametrize("seed", range(20))
def test_mser_is_its_definition(seed: int) -> None:
    values = [3000 * math.exp(-i / (1 + seed)) + value for i, value in enumerate(noise(40, seed))]
    assert mser(values) == mser_by_definition(values)


def test_a_constant_series_loses_nothing() -> None:
    assert mser([1e9] * 30) == 0
    found = find(series([5.0] * 100))
    assert (found.rule, found.cut_s, found.steady, found.drift_percent) == ("MSER-5", 0, True, 0)


def test_what_is_unsteady_beyond_chance_stays_so() -> None:
    """Fifths that differ, beside a drift that may be chance."""
    rates = [mean + 0.5 * (-1) ** n for mean in (80, 125, 80, 125, 100) for n in range(50)]
    assert excursion(rates)[1] and abs(drift(rates)[0]) > 10
    found = find(series(rates), fixed=True)
    assert found.steady is False and "fifths" in found.reason


def test_a_step_is_cut_where_it_ends() -> None:
    rates = [3000.0] * 20 + noise(80, 1)
    found = find(series(rates))
    assert found.steady and found.cut_s == 10.0  # 20 intervals of half a second
    assert find(series([10.0] * 15 + noise(85, 1))).cut_s == 7.5  # a slow start, too


def test_a_decay_is_cut_where_it_drowns_in_noise() -> None:
    rates = [4000 * math.exp(-i / 6) + value for i, value in enumerate(noise(200, 3))]
    found = find(series(rates))
    assert found.steady and 8 <= found.cut_s <= 25
    kept = [value for i, value in enumerate(rates) if i * 0.5 >= found.cut_s]
    assert sum(kept) / len(kept) == pytest.approx(1000, rel=0.03)


def test_what_never_settles_is_not_steady() -> None:
    trend = find(series([1000 + 5 * i + value / 100 for i, value in enumerate(noise(100, 4))]))
    assert trend.steady is False and trend.cut_s == 0 and "half of the time" in trend.reason
    assert trend.drift_percent == pytest.approx(38, abs=3)
    late = find(series([3000.0] * 80 + [1000.0] * 20))  # falls when the fast cache is full
    assert late.steady is False and "-" in late.reason


def test_a_small_drift_is_tolerated() -> None:
    found = find(series([1000 + i / 2 for i in range(100)]))  # 5 %
    assert found.steady is True and found.drift_percent is not None and abs(found.drift_percent) < 10


def test_pure_noise_is_seldom_called_unsteady() -> None:
    """Also in the short series of profile quick, and when it is strong."""
    for count, deviation in ((20, 50.0), (20, 300.0), (174, 300.0)):
        found = [find(series(noise(count, seed, deviation=deviation))) for seed in range(300)]
        assert sum(one.steady is False for one in found) <= 0.1 * 300  # two tests at 5 %
        assert all(one.cut_s <= count * 0.5 / 2 for one in found)


def test_what_may_be_chance_is_no_verdict() -> None:
    """Noise of 60 % in 20 intervals often drifts by more than 10 %, and seldom means it."""
    found = [find(series(noise(20, seed, deviation=600.0))) for seed in range(200)]
    unknown = [one for one in found if one.steady is None]
    assert len(unknown) > 40 and all("too noisy to tell" in one.reason for one in unknown)
    assert all(abs(one.drift_percent or 0) <= 10 for one in found if one.steady)


def test_few_intervals_tell_nothing() -> None:
    for count in (0, 1, 9):
        found = find(series([1000.0] * count))
        assert found.steady is None and found.cut_s == 0 and f"{count} intervals" in found.reason
    short = find(series([3000.0] * 4 + [1000.0] * 16))
    assert (short.rule, short.cut_s, short.steady) == ("MSER-2", 2.0, True)


def test_what_the_user_cut_is_not_cut_again() -> None:
    found = find(series([3000.0] * 20 + noise(80, 1)), fixed=True)
    assert (found.rule, found.cut_s, found.steady) == (FIXED, 0, False)
    assert find(series(noise(100, 1)), fixed=True).steady is True


def test_nothing_completed_at_all() -> None:
    found = find(series([0.0] * 100))
    assert found.cut_s == 0 and drift([0.0, 0.0, 0.0]) == (0.0, False)


# ---- Student's t ------------------------------------------------------------------------


def test_quantiles_are_scipys() -> None:
    for degrees in [*range(1, 200), 1000, 100_000]:
        assert t_quantile(degrees) == pytest.approx(float(stdtrit(degrees, 0.975)), rel=2e-6)


def test_half_width_by_hand() -> None:
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.302653 / math.sqrt(3))
    assert half_width([5.0, 5.0]) == 0


def test_a_hump_is_not_steady() -> None:
    """It drifts nowhere, but SNIA's other rule sees it: fifths differ by more than 20 %."""
    hump = [1000 + 600 * math.sin(math.pi * i / 99) + value - 1000 for i, value in enumerate(noise(100, 5, 1000, 20))]
    found = find(series(hump), fixed=True)
    assert found.steady is False and "fifths differs" in found.reason
    assert excursion([100.0] * 50) == (0.0, False) and excursion([0.0] * 50) == (0.0, False)
    assert excursion([100.0, 130.0, 100.0, 100.0, 100.0])[1] is False  # nothing tells it from chance


def test_an_excursion_by_chance_is_none() -> None:
    called = sum(excursion(noise(50, seed, 1000, 400))[1] for seed in range(400))
    assert called / 400 < 0.07
