# SPDX-License-Identifier: BSD-3-Clause
"""How far a campaign agrees with the paper as a whole: rank, distance and sign, per system and metric.

Spearman's rank correlation (Spearman 1904, scipy) over the cells that both have; the median and the largest absolute
distance; the share of differences with the same sign, with Clopper's and Pearson's interval. Native values are
absolute, so that their distance is in % of the paper's; differences to native are compared in percentage points.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from .paper_cells import PaperCell
from .render import new_grid
from .statistics import Interval, share_interval
from .table import DEVICES, SYSTEMS, Metric

LEAST_RANKED = 3  # fewer cells than that have no order worth a number


@dataclass(frozen=True)
class Agreement:
    """One system and metric over n cells of one of the paper's tables.

    rho: Spearman's correlation, None with too few cells or where all are equal. distance: median, largest: absolute, in
    percentage points (of what is absolute: % of the paper's value). worst: the cell of the largest. same_sign: share of
    the cells whose difference has the paper's sign, without those that the paper prints as 0; None where there is none.
    """

    table: int
    host: str
    system: str
    metric: Metric
    n: int
    rho: float | None
    distance: float
    largest: float
    worst: str
    absolute: bool
    same_sign: Interval | None

    @property
    def in_points(self) -> bool:
        """Are distances percentage points?"""
        return not self.absolute or self.metric.points


def _distance(cell: PaperCell, ours: float) -> float:
    if not cell.absolute or cell.metric.points:
        return abs(ours - cell.paper)
    return 100 * abs(ours / cell.paper - 1) if cell.paper else math.inf


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _agreement(cells: Sequence[PaperCell]) -> Agreement:
    values = [cell.ours.value for cell in cells if cell.ours]
    distances = [_distance(cell, value) for cell, value in zip(cells, values, strict=True)]
    rho = None
    theirs = [cell.paper for cell in cells]
    if len(cells) >= LEAST_RANKED and len(set(values)) > 1 and len(set(theirs)) > 1:
        from scipy.stats import spearmanr  # which takes long to load

        rho = float(spearmanr(values, theirs).statistic)
    worst = cells[distances.index(max(distances))]
    signs = None
    if not worst.absolute:
        signed = [(value, cell.paper) for cell, value in zip(cells, values, strict=True) if cell.paper]
        same = sum(_sign(ours) == _sign(paper) for ours, paper in signed)
        signs = share_interval(same, len(signed)) if signed else None
    where = f"{DEVICES.get(worst.device, worst.device)} {worst.workload}"
    return Agreement(
        worst.table,
        worst.host,
        worst.system,
        worst.metric,
        len(cells),
        rho,
        median(distances),
        max(distances),
        where,
        worst.absolute,
        signs,
    )


def agreements(cells: Sequence[PaperCell]) -> list[Agreement]:
    """How each table, host, system and metric with a measured cell agrees, in the order of the cells."""
    groups: dict[tuple[int, str, str, str], list[PaperCell]] = defaultdict(list)
    for cell in cells:
        if cell.ours is not None:
            groups[cell.table, cell.host, cell.system, cell.metric.id].append(cell)
    return [_agreement(group) for group in groups.values()]


def grid(found: Sequence[Agreement]) -> Grid:
    """A row for each."""
    shown = new_grid("T.", "System", "Metric", "Cells", "Rank", "Median", "Largest", "Same sign")
    for one in found:
        unit = "pt" if one.in_points else "%"
        rho = "-" if one.rho is None else f"{one.rho:.2f}"
        sign = "-"
        if one.same_sign and one.same_sign.low is not None and one.same_sign.high is not None:
            share, low, high = (100 * value for value in (one.same_sign.value, one.same_sign.low, one.same_sign.high))
            sign = f"{share:.0f} % [{low:.0f}, {high:.0f}]"
        row = [str(one.table), SYSTEMS.get(one.system, one.system), one.metric.title, str(one.n), rho]
        shown.add_row(*row, f"{one.distance:.1f} {unit}", f"{one.largest:.1f} {unit}", sign)
    return shown


def terminal(found: Sequence[Agreement]) -> RenderableType:
    """The rows, and what the columns mean; nothing where nothing was measured."""
    if not found:
        return Group()
    note = (
        "Rank: Spearman's correlation over the cells of a table. Median, largest: distance to the paper's number (pt:"
        " percentage points). Same sign: share of the differences that the paper does not print as 0,"
        " [95 % interval]."
    )
    return Group("", grid(found), Text(note))


def as_json(found: Sequence[Agreement]) -> list[dict[str, Any]]:
    """For programs."""
    return [
        {
            "table": one.table,
            "host": one.host,
            "system": one.system,
            "metric": one.metric.id,
            "cells": one.n,
            "spearman": one.rho,
            "median_distance": one.distance,
            "largest_distance": one.largest,
            "largest_at": one.worst,
            "distance_unit": "points" if one.in_points else "%",
            "same_sign": one.same_sign.value if one.same_sign else None,
            "same_sign_low": one.same_sign.low if one.same_sign else None,
            "same_sign_high": one.same_sign.high if one.same_sign else None,
        }
        for one in found
    ]
