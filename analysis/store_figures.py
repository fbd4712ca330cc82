# SPDX-License-Identifier: BSD-3-Clause
"""Throughput of devices over a store in the layout of figures 9.1 to 9.4 of the BUSE thesis: suite s3.

A figure has a panel for each depth (rows) and number of jobs (columns), and in it a line for each system and mode by
block size; or panels with lines by number of jobs. What belongs to which figure is in the campaign's plan.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from . import drawing
from .palette import look
from .report import ALL_HOSTS, INTERVALS, Report, interval_fields, interval_of, of_suite, place, size_text, summaries_of
from .statistics import Interval
from .summaries import SUMMARY, SummaryError, lab_words
from .table import ordered

SUITE = "s3"
WORKLOAD = re.compile(r"(?P<mode>[a-z-]+)-(?P<jobs>\d+)th-(?P<size>\d+)(?P<unit>[km]?)-d(?P<depth>\d+)")
UNITS = {"": 0, "k": 10, "m": 20}
SYSTEMS = {
    "s3": "userblk s3",
    "s3-direct": "userblk s3, direct",
    "s3-nbd": "userblk s3, kernel nbd",
    "s3-direct-nbd": "userblk s3, direct, kernel nbd",
    "s3backer-file": "s3backer",
    "nbdkit-s3": "nbdkit S3 plugin",
    "s3-null": "nbdkit null",
}
AXES = {"block_size": "block size", "jobs": "jobs"}
NOTES = (
    "MB/s, 10^6 bytes; of writes until all was flushed. seq: sequential, rand: random; depth: of each job.",
    INTERVALS,
)
WIDTH, HEIGHT = 3.4, 2.4  # inches of a panel

Series = tuple[str, str]  # system, mode
Samples = dict["Place", dict[Series, list[float]]]  # MB/s of each valid run


@dataclass(frozen=True, order=True)
class Place:
    """Where a value is in a figure. block_size: bytes."""

    store: str
    depth: int
    jobs: int
    block_size: int

    def x(self, axis: str) -> int:
        return self.block_size if axis == "block_size" else self.jobs

    def panel(self, axis: str) -> tuple[int, int, int]:
        """What it has in common with the other values of its panel."""
        return self.depth, 0 if axis == "jobs" else self.jobs, 0 if axis == "block_size" else self.block_size


def parse_workload(name: str, store: str) -> tuple[str, Place]:
    """Mode and place. Raises ValueError for what is no id of a suite over a store."""
    match = WORKLOAD.fullmatch(name)
    if not match:
        raise ValueError(name)
    size = int(match["size"]) << UNITS[match["unit"]]
    return match["mode"], Place(store, int(match["depth"]), int(match["jobs"]), size)


def reports(directory: Path, host: str = ALL_HOSTS) -> list[Report]:
    """The reports on a campaign, one for each figure with a finished run. Raises SummaryError."""
    found, stores = [], set()
    for path, summary in summaries_of(directory, SUITE, host):
        with of_suite(SUITE, path / SUMMARY):
            found.append(summary)
            stores.add(_store(summary.get("settings", {})))
    if not found:
        return []
    notes = (f"store: {', '.join(sorted(stores - {''}))}",) * bool(stores - {""})
    try:
        figures = json.loads((directory / "plan.json").read_text())["suite"]["figures"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SummaryError(f"{directory / 'plan.json'}: cannot be read: {error}") from None
    return [report for figure in figures if (report := _report(figure, found, notes))]


def _report(figure: Mapping[str, Any], found: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> Report | None:
    title, axis = str(figure["title"]), str(figure["x"])
    samples: Samples = defaultdict(lambda: defaultdict(list))
    for summary in found:
        rate = summary["metrics"].get("throughput_mbps") if summary["valid"] else None
        if rate is not None and summary["workload"] in figure["workloads"]:
            mode, where = parse_workload(summary["workload"], summary["device"])
            samples[where][summary["system"], mode].append(rate)
    if not samples:
        return None
    series = _ordered({one for rates in samples.values() for one in rates})
    rows, records = [], []
    for where, rates in sorted(samples.items()):
        fixed = (where.store, str(where.depth), str(where.jobs))
        rows.append((*fixed, size_text(where.block_size), *(_text(interval_of(rates.get(one, []))) for one in series)))
        for system, mode in series:
            if values := rates.get((system, mode)):
                fields = (system, mode, str(len(values)), *interval_fields(interval_of(values)))
                records.append((*fixed, str(where.block_size), *fields))
    machine, facts = place(found)
    number = title.split()[0]
    return Report(
        name=f"{SUITE}-{number}",
        title=f"{title} (BUSE thesis, figure {number}), {machine}",
        notes=(*facts, *notes, *NOTES),
        columns=("Store", "Depth", "Jobs", "Block", *map(_head, series)),
        rows=tuple(rows),
        heads=tuple("store depth jobs block_size system mode n mbps ci_low ci_high".split()),
        records=tuple(records),
        emulated=max(lab_words(summary) for summary in found),
        figures={
            f"{SUITE}-{number}-{store}": partial(_draw, f"{title}, {store}, {machine}", axis, samples, series, store)
            for store in dict.fromkeys(where.store for where in sorted(samples))
        },
    )


def _store(settings: Mapping[str, Any]) -> str:
    """What the store is, as a run says; "" if it does not."""
    store, where = settings.get("store"), settings.get("store_directory")
    if not store:
        return ""
    return f"{store} in {where} of the same machine" if where else str(store)


def _ordered(found: set[Series]) -> list[Series]:
    """Sequential first, as in the thesis's tables."""
    systems = ordered((system for system, _ in found), SYSTEMS)
    modes = sorted({mode for _, mode in found}, reverse=True)
    return [(system, mode) for system in systems for mode in modes if (system, mode) in found]


def _head(series: Series) -> str:
    return f"{SYSTEMS.get(series[0], series[0])} {series[1].split('-')[0]}"


def _text(interval: Interval | None) -> str:
    """Three digits."""
    if interval is None:
        return "-"
    digits = 0 if interval.value >= 100 else 1 if interval.value >= 10 else 2
    half = interval.half
    return f"{interval.value:.{digits}f}" + ("" if half is None else f" ±{half:.{digits}f}")


def _draw(title: str, axis: str, samples: Samples, series: Sequence[Series], store: str) -> Any:
    here = {where: rates for where, rates in sorted(samples.items()) if where.store == store}
    panels = sorted({where.panel(axis) for where in here})
    depths = sorted({depth for depth, _, _ in panels})
    columns = sorted({(jobs, size) for _, jobs, size in panels})
    size = (WIDTH * len(columns) + 2, HEIGHT * len(depths) + 1)
    figure = drawing.new_figure(*size)
    axes = figure.subplots(len(depths), len(columns), sharey=True, squeeze=False)
    systems = list(dict.fromkeys(system for system, _ in series))
    shown: list[Interval] = []
    for panel in panels:
        depth, jobs, block = panel
        one = axes[depths.index(depth), columns.index((jobs, block))]
        places = [where for where in here if where.panel(axis) == panel]
        ticks = {where.x(axis): number for number, where in enumerate(places)}
        for system, mode in series:
            points = [(w.x(axis), mean) for w in places if (mean := interval_of(here[w].get((system, mode), [])))]
            if points:
                shown += [mean for _, mean in points]
                own = look(system, systems)
                one.errorbar(
                    [ticks[x] for x, _ in points],
                    [mean.value for _, mean in points],
                    drawing.half_widths([mean for _, mean in points]),
                    color=own.colour,
                    linestyle="-" if mode.startswith("seq") else "--",
                    marker=own.marker,
                    label=_head((system, mode)),
                    markersize=3,
                    capsize=2,
                )
        one.set_xticks(range(len(places)), [size_text(x) if axis == "block_size" else str(x) for x in ticks])
        one.set_yscale("log")
        one.set_title(f"depth {depth}, " + (f"jobs {jobs}" if jobs else f"blocks of {size_text(block)}"), fontsize=9)
    figure.supylabel("MB/s", fontsize=9)
    figure.supxlabel(AXES[axis], fontsize=9)
    drawing.legend(axes.flat, axes[0, -1])
    figure.suptitle(title + drawing.intervals_text(shown), fontsize=10)
    return figure
