# SPDX-License-Identifier: BSD-3-Clause
"""When does a run's warm-up end, and is what follows steady?

The cut is MSER-5's (White 1997): of all points in the first half of the series, the one that makes the standard error
of the mean of what follows smallest, computed over means of five intervals. Among rules that need no knob it does
best where compared (Hoad, Robinson, Davies 2010), it is defined for one series without a model of it, and it cuts
nothing off a series that needs no cut. Short series get smaller groups, so that there are ten to choose among; with
fewer than ten intervals nothing can be said.

MSER finds a cut in every series, so a verdict is needed beside it. A cut in the very middle, the last that can be
chosen, is none: so end series that drift to their end, and now and then pure noise. A run is steady if the
least-squares line through what is left rises or falls by no more than 10 % of the mean over its length, and
the means of its five fifths differ by no more than 20 %, as SNIA's Performance Test Specification 2.0.2 asks of the
rounds of a measurement window. If the line does by more, the run is not steady, unless it could be chance (95 %):
then it is too noisy to tell.

Standard library only; all functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from .student import t_quantile

GROUP = 5
LEAST_GROUPS = 10
PARTS = 5  # as many as SNIA's rounds of a measurement window
EXCURSION_LIMIT = 20.0  # % of the mean, between the highest and the lowest of them
DRIFT_LIMIT = 10.0  # % of the mean, from the first to the last interval that is used

FIXED = "fixed"


@dataclass(frozen=True)
class Interval:
    """What a workload completed between two times (s after its ramp). waited_us: the sum of the latencies."""

    start: float
    end: float
    operations: float
    waited_us: float


@dataclass(frozen=True)
class WarmUp:
    """cut_s: cut off after the ramp. steady None: not known. reason: for people, "" if steady."""

    rule: str
    cut_s: float
    steady: bool | None
    reason: str
    drift_percent: float | None = None
    intervals: int = 0


def mser(values: Sequence[float]) -> int:
    """How many values at the start to leave out, at most half of them: the fewest that minimise MSER's statistic."""
    count = len(values)
    best, cut = math.inf, 0
    # From the end, so that sums are of what follows; relative to the last, so that large means lose no digits.
    total = squares = 0.0
    origin = values[-1] if values else 0.0
    for first in range(count - 1, -1, -1):
        value = values[first] - origin
        total += value
        squares += value * value
        left = count - first
        if first <= count // 2:
            statistic = max(0.0, squares - total * total / left) / (left * left)
            if statistic <= best * (1 + 1e-12):  # of equal ones the earliest
                best, cut = min(best, statistic), first
    return cut


def drift(values: Sequence[float]) -> tuple[float, bool]:
    """How much the least-squares line changes over the values, % of their mean, and whether that is beyond chance."""
    count = len(values)
    mean = fmean(values) if values else 0.0
    if count < 3 or mean == 0:
        return 0.0, False
    middle = (count - 1) / 2
    spread = sum((index - middle) ** 2 for index in range(count))
    slope = sum((index - middle) * (value - mean) for index, value in enumerate(values)) / spread
    rest = sum((value - mean - slope * (index - middle)) ** 2 for index, value in enumerate(values))
    error = math.sqrt(rest / (count - 2) / spread)
    return 100 * slope * (count - 1) / mean, abs(slope) > t_quantile(count - 2) * error


def excursion(values: Sequence[float]) -> tuple[float, bool]:
    """Between the highest and the lowest of the means of five equal parts, % of the mean, and whether beyond chance.

    By Tukey's studentised range at 95 %, of which 3.86 + 9 / degrees of freedom is within 3 % for five means.
    """
    length = len(values) // PARTS
    left = values[len(values) - length * PARTS :]
    mean = fmean(left) if left else 0.0
    if mean == 0:
        return 0.0, False
    parts = [left[at : at + length] for at in range(0, len(left), length)]
    means = [fmean(part) for part in parts]
    between = max(means) - min(means)
    degrees = PARTS * (length - 1)
    if not degrees:
        return 100 * between / mean, False
    within = sum((value - middle) ** 2 for part, middle in zip(parts, means, strict=True) for value in part) / degrees
    return 100 * between / mean, between > (3.86 + 9 / degrees) * math.sqrt(within / length)


def settled(values: Sequence[float]) -> tuple[float, float, bool]:
    """Slope and excursion of a window's rounds, % of their mean, and whether that is steady by SNIA's definition.

    The least-squares line changes by at most 10 % over the window, and the highest and lowest differ by at most 20 %.
    """
    mean = fmean(values)
    if mean <= 0:
        return 0.0, 0.0, False
    slope, between = drift(values)[0], 100 * (max(values) - min(values)) / mean
    return slope, between, abs(slope) <= DRIFT_LIMIT and between <= EXCURSION_LIMIT


def find(series: Sequence[Interval], fixed: bool = False) -> WarmUp:
    """The warm-up of a series of intervals of equal length. fixed: nothing is cut, as the user said how much to."""
    rates = [one.operations / (one.end - one.start) for one in series]
    group = min(GROUP, len(rates) // LEAST_GROUPS)
    rule = FIXED if fixed else f"MSER-{max(1, group)}"
    if not group:
        reason = f"{len(rates)} intervals are too few to tell whether it is steady"
        return WarmUp(rule, 0.0, None, reason, None, len(rates))
    means = [fmean(rates[at : at + group]) for at in range(0, len(rates) - group + 1, group)]
    cut = 0 if fixed else mser(means)
    late = bool(cut) and cut == len(means) // 2
    if late:
        cut = 0  # no end of a warm-up was found: there is no warm-up, or it continues
    percent, real = drift(means[cut:])
    steady: bool | None = True
    reason = ""
    between, beyond = excursion(means[cut:])
    if between > EXCURSION_LIMIT:
        steady = False if beyond else None
        chance = "" if beyond else ", which may be chance: it is too noisy to tell"
        reason = f"throughput of its fifths differs by {between:.0f} % of the mean{chance}"
    # What is unsteady beyond chance stays so, whether the drift may be chance or not.
    if abs(percent) > DRIFT_LIMIT and (real or steady is not False):
        steady = False if real else None
        chance = "" if real else ", which may be chance: it is too noisy to tell"
        lasts = "it is still warming up after half of the time: " if late and real else ""
        reason = f"{lasts}throughput drifts by {percent:+.0f} % over the measured time{chance}"
    cut_s = series[cut * group].start if cut else 0.0
    return WarmUp(rule, round(cut_s, 6), steady, reason, round(percent, 3), len(rates))
