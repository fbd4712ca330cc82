# SPDX-License-Identifier: BSD-3-Clause
"""Student's t where there is no SciPy: the runner decides with it how often a cell is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance

# Two-sided 95 % quantiles of 1 to 30 degrees of freedom; the rest by Cornish and Fisher's expansion.
_QUANTILES = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139,
    2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
    2.079614, 2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831, 2.048407, 2.045230, 2.042272,
)  # fmt: skip
_NORMAL = 1.959963985


def t_quantile(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t for 1 degree of freedom or more."""
    if degrees <= len(_QUANTILES):
        return _QUANTILES[degrees - 1]
    z = _NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def half_width(sample: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean of two values or more."""
    return t_quantile(len(sample) - 1) * math.sqrt(variance(sample, fmean(sample)) / len(sample))
