# SPDX-License-Identifier: BSD-3-Clause
"""Campaigns one after the other: one cell, or the geometric mean of all that they have in common, per system."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, geometric_mean
from textwrap import wrap
from typing import Any

from . import drawing
from .palette import look
from .report import NO_VALUE, Report, interval_fields, interval_text
from .statistics import Interval, mean_interval
from .summaries import REAL, Campaign, SummaryError, asked_otherwise, changes_of_all
from .table import DEVICES, METRICS, SYSTEMS, Metric, ordered

HEADS = "campaign created commit measured system metric unit cells value ci_low ci_high change_percent"
SHOWN_METRICS = {"throughput": METRICS[0], "latency": METRICS[1]}
COMMIT = 8  # digits of one that tables show
TITLE = 90  # letters of a line of a figure's title

Cell = tuple[str, str, str, str]  # host ("" where each campaign has one), suite, device, workload


@dataclass(frozen=True)
class Point:
    """A system in a campaign. cells: of which value is the geometric mean; one: value is its mean, with an interval.

    change: to the first campaign that has the system, %.
    """

    cells: int
    value: Interval
    change: float


def _samples(
    campaign: Campaign, metric: Metric, device: str | None, workload: str | None, by_host: bool
) -> Mapping[str, Mapping[Cell, list[float]]]:
    """Positive values of valid runs, by system and cell."""
    found: dict[str, dict[Cell, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in campaign.runs:
        value = run.metrics.get(metric.id, 0.0)
        if run.valid and value > 0 and device in (None, run.device) and workload in (None, run.workload):
            found[run.system][run.host if by_host else "", run.suite, run.device, run.workload].append(value)
    return found


def points(
    campaigns: Sequence[Campaign], metric: Metric, device: str | None = None, workload: str | None = None
) -> dict[str, list[Point | None]]:
    """By system, one for each campaign: None where it has none of the cells.

    Only cells that all campaigns have which have the system at all. Raises SummaryError if there is none.
    """
    by_host = any(len({run.host for run in campaign.runs}) > 1 for campaign in campaigns)
    samples = [_samples(campaign, metric, device, workload, by_host) for campaign in campaigns]
    found: dict[str, list[Point | None]] = {}
    for system in ordered({name for one in samples for name in one}, SYSTEMS):
        having = [set(one[system]) for one in samples if system in one]
        common = sorted(set.intersection(*having))
        if not common:
            continue
        line: list[Point | None] = []
        first = 0.0
        for one in samples:
            if system not in one:
                line.append(None)
                continue
            cells = [one[system][cell] for cell in common]
            mean = geometric_mean([fmean(cell) for cell in cells])
            first = first or mean
            value = mean_interval(cells[0]) if len(cells) == 1 else Interval(mean)
            line.append(Point(len(common), value, 100 * (mean / first - 1)))
        found[system] = line
    if not found:
        what = " ".join(name for name in (device, workload) if name)
        raise SummaryError(f"cell={what or 'any'}: no system has a valid run of it in each of these campaigns")
    return found


def _commit(campaign: Campaign) -> str:
    source = campaign.asked.get("userblk")
    if not isinstance(source, Mapping) or not source.get("commit"):
        return NO_VALUE
    return str(source["commit"])[:COMMIT] + "+" * bool(source.get("modified"))


def _measured(campaign: Campaign) -> str:
    return max((run.emulated for run in campaign.runs), default="") or REAL


def _unlike(campaigns: Sequence[Campaign]) -> dict[str, str]:
    """Hosts, profiles, kernels and parameters, where not all have the same: by name, with what each has."""
    told = {}
    for name in ("host", "profile", "kernel"):
        found = [", ".join(sorted({getattr(run, name) for run in one.runs if getattr(run, name)})) for one in campaigns]
        if len(values := dict.fromkeys(found)) > 1:
            told[name] = f" {', '.join(value or 'unknown' for value in values)}"
    for name, each in asked_otherwise(campaigns).items():
        told[name] = f": {' -> '.join(value or NO_VALUE for value in dict.fromkeys(each))}"
    return told


def _left_out(
    campaigns: Sequence[Campaign],
    found: Mapping[str, object],
    metric: Metric,
    device: str | None,
    workload: str | None,
) -> list[str]:
    """Notes on systems without a cell that all of their campaigns have, and on values that have no geometric mean."""
    asked = [
        run
        for campaign in campaigns
        for run in campaign.runs
        if run.valid and metric.id in run.metrics and device in (None, run.device) and workload in (None, run.workload)
    ]
    notes = []
    if gone := [SYSTEMS.get(name, name) for name in ordered({run.system for run in asked} - set(found), SYSTEMS)]:
        notes.append(f"Left out, as no cell is in all campaigns that have the system: {', '.join(gone)}.")
    if none := sum(run.metrics[metric.id] <= 0 for run in asked):
        notes.append(f"Left out, as they are 0 or less: {none} of {len(asked)} values.")
    return notes


def history(
    campaigns: Sequence[Campaign], metric: Metric, device: str | None = None, workload: str | None = None
) -> Report:
    """The campaigns in the order of their beginnings. Raises SummaryError if they have no cell in common."""
    campaigns = sorted(campaigns, key=lambda campaign: (campaign.created, campaign.name))
    found = points(campaigns, metric, device, workload)
    what = " ".join((DEVICES.get(device, device) if device else "", workload or "")).strip() or "all cells"
    several = any(point and point.cells > 1 for line in found.values() for point in line)
    title = f"{metric.title} ({metric.unit}) of {what}" + ", geometric mean" * several
    rows, records = [], []
    for at, campaign in enumerate(campaigns):
        row = [campaign.name, _commit(campaign)]
        for system, line in found.items():
            point = line[at]
            if point is None:
                row.append(NO_VALUE)
                continue
            row.append(f"{interval_text(point.value, 2)} ({point.change:+.1f} %)")
            place = (campaign.name, campaign.created, _commit(campaign), _measured(campaign), system)
            value = (str(point.cells), *interval_fields(point.value), repr(point.change))
            records.append((*place, metric.id, metric.unit, *value))
        rows.append(tuple(row))
    notes = ["In brackets: change to the first campaign that has the system."]
    if several:
        cells = {SYSTEMS.get(name, name): next(p.cells for p in line if p) for name, line in found.items()}
        counted = ", ".join(f"{name} {count}" for name, count in cells.items())
        notes.append(f"Geometric mean over the cells that all campaigns have of a system: {counted}.")
    each = [_measured(campaign) for campaign in campaigns]
    kinds = sorted(set(each))
    unlike = _unlike(campaigns)
    names = [campaign.name for campaign in campaigns]
    drawn = title if kinds == [REAL] else f"{title}\n{kinds[0]}"
    if len(kinds) > 1:
        unlike = dict.fromkeys(kinds, "") | unlike
        names = [f"{name}\n{kind}" for name, kind in zip(names, each, strict=True)]
        drawn = title
    if unlike:
        notes.append(f"NOT measured alike: {'; '.join(f'{name}{values}' for name, values in unlike.items())}.")
        drawn += f"\nNOT measured alike: {', '.join(unlike)}"
    notes += _left_out(campaigns, found, metric, device, workload)
    notes += changes_of_all(campaigns)
    return Report(
        "history",
        f"{title}, {kinds[0]}" if len(kinds) == 1 else title,
        tuple(notes),
        ("Campaign", "Commit", *(SYSTEMS.get(name, name) for name in found)),
        tuple(rows),
        tuple(HEADS.split()),
        tuple(records),
        emulated="" if kinds == [REAL] else kinds[0],
        figures={"history": partial(_draw, drawn, names, found)},
    )


def _draw(title: str, names: Sequence[str], found: Mapping[str, Sequence[Point | None]]) -> Any:
    """A line for each system, a place for each campaign."""
    figure = drawing.new_figure(max(6.0, 0.5 * len(names) + 3), 4.0)
    axes = figure.subplots()
    shown: list[Interval] = []
    for system, line in found.items():
        style = look(system, list(found))
        held = [(at, point) for at, point in enumerate(line) if point]
        shown += [point.value for _, point in held if point.cells == 1]
        axes.errorbar(
            [at for at, _ in held],
            [point.value.value for _, point in held],
            drawing.half_widths([point.value for _, point in held]),
            marker=style.marker, linestyle=style.line, markersize=4, capsize=3, color=style.colour,
            label=SYSTEMS.get(system, system),
        )  # fmt: skip
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=7)
    axes.set_ylim(bottom=0)
    drawing.legend([axes], axes)
    first, *rest = title.splitlines()
    lines = [first + (drawing.intervals_text(shown) if shown else ""), *rest]
    figure.suptitle("\n".join(part for line in lines for part in wrap(line, TITLE)), fontsize=9)
    return figure
