# SPDX-License-Identifier: BSD-3-Clause
"""Merged histograms and their percentiles."""

from __future__ import annotations

import random

from userblk.harness.observing.histogram import distribution, merged, percentile, supported


def test_percentiles() -> None:
    assert percentile({10: 98, 20: 1, 30: 1}, 99) == 20
    assert percentile({10: 1}, 50) == 10
    assert percentile({}, 50) == 0
    for beyond in range(10, 200):  # in floating point 99.9 % of 41,000 is more than 40,959
        exact = {1000: 999 * beyond, 50_000_000: beyond}
        assert percentile(exact, 99.9) == 1000 and distribution(exact, [50, 99.9]) == [1000, 1000]


def test_merging_adds_bins() -> None:
    assert merged([{30: 1, 10: 2}, {}, {10: 3, 20: 1}]) == {10: 5, 20: 1, 30: 1}
    assert list(merged([{30: 1, 10: 2}])) == [10, 30]
    named = merged([{"30": 1, "9": 2}, {"9": 1}])
    assert named == {9: 3, 30: 1} and list(named) == [9, 30]


def test_percentiles_of_merged_histograms_are_not_means_of_percentiles() -> None:
    # A short slow run beside a long fast one: half of all operations took 10, whatever the runs' medians say.
    fast, slow = {10: 900}, {1000: 100}
    assert percentile(merged([fast, slow]), 50) == 10
    assert (percentile(fast, 50) + percentile(slow, 50)) / 2 == 505


def test_merged_histograms_have_the_percentiles_of_all_operations() -> None:
    rng = random.Random(3)
    runs = [[rng.randrange(1, 500) for _ in range(rng.randrange(100, 2000))] for _ in range(5)]
    everything = sorted(value for run in runs for value in run)
    bins = merged({value: run.count(value) for value in set(run)} for run in runs)
    for percent in (1, 50, 90, 99):
        rank = -(-percent * len(everything) // 100)
        assert percentile(bins, percent) == everything[rank - 1]


def test_a_percentile_needs_operations_beyond_it() -> None:
    assert supported({10: 999, 20: 1}, 99) == 10
    assert supported({10: 998, 20: 1}, 99) is None  # 9.99 lie beyond: the largest would stand for it
    assert supported({}, 50) is None


def test_a_distribution_is_its_percentiles() -> None:
    rng = random.Random(4)
    bins = {rng.randrange(1, 10_000): rng.randrange(1, 50) for _ in range(300)}
    percents = [0.0, 10.0, 50.0, 90.0, 99.0, 99.9, 99.99]
    assert distribution(bins, percents) == [supported(bins, percent) for percent in percents]
    assert distribution({}, percents) == [None] * len(percents)
