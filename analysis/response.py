# SPDX-License-Identifier: BSD-3-Clause
"""Latency over offered load: suite response, as a table and as curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from userblk.harness.observing.histogram import tail_metric

from . import drawing
from .palette import look
from .report import (
    ALL_HOSTS,
    INTERVALS,
    NO_VALUE,
    Report,
    interval_fields,
    interval_of,
    interval_text,
    of_suite,
    place,
    some_text,
    summaries_of,
)
from .statistics import Interval
from .summaries import SUMMARY, lab_words
from .table import DEVICES, SYSTEMS, ordered

SUITE = "response"
PERCENTILES = (50.0, 99.0, 99.9)
NOTES = (
    "Open loop: requests begin at the times of a Poisson process, and latencies are from these times, in microseconds."
    " Load: % of the system's own capacity, which fio found with a closed loop.",
    "Percentiles: the mean over runs of each run's; none (-, not in) where fewer than ten of its requests lie beyond."
    " *: not sustained, less than 95 % was done in the measured time, so that latencies grow with the time of the run.",
    INTERVALS,
)
LEAST = 1e-9  # of a mean: where the lower end of its interval is drawn, if that is 0 or less
UNSUSTAINED = "not sustained"

Key = tuple[str, str, str, int]  # device, mode, system, load in %
Cell = dict[str, list[float]]  # of each metric, a value a run


def reports(directory: Path, host: str = ALL_HOSTS) -> list[Report]:
    """The reports on a campaign; none without a finished run. Raises SummaryError."""
    read = list(summaries_of(directory, SUITE, host))
    found = [summary for _, summary in read]
    if not found:
        return []
    cells: dict[Key, Cell] = defaultdict(lambda: defaultdict(list))
    broken: set[Key] = set()
    for path, summary in read:
        mode, _, load = summary["workload"].rpartition("-")
        if not summary["valid"] or not load.endswith("load"):
            continue
        with of_suite(SUITE, path / SUMMARY):
            key = (summary["device"], mode, summary["system"], int(load.removesuffix("load")))
            offered, done = summary["settings"][SUITE]["offered_kops"], summary["metrics"]["throughput_kops"]
            cells[key]["offered"].append(float(offered))
            cells[key]["done"].append(float(done))
        for percent in PERCENTILES:
            if (value := summary["metrics"].get(tail_metric(percent))) is not None:
                cells[key][tail_metric(percent)].append(float(value))
        if any(line.startswith(UNSUSTAINED) for line in summary["warnings"]):
            broken.add(key)
    systems = ordered({system for _, _, system, _ in cells}, SYSTEMS)
    order = sorted(cells, key=lambda key: (key[0], key[1], systems.index(key[2]), key[3]))
    where, facts = place(found)
    rows = [_row(key, cells[key], key in broken) for key in order]
    records = [
        (*key[:3], str(key[3]), name, str(len(values)), *interval_fields(interval_of(values)))
        for key in order
        for name, values in cells[key].items()
    ]
    panels = dict.fromkeys((device, mode) for device, mode, _, _ in order)
    return [
        Report(
            name=SUITE,
            title=f"Latency over offered load, {where}",
            notes=(*facts, *NOTES),
            columns=("Device", "Mode", "System", "Load, %", "Offered, kop/s", "Done, kop/s", *map(_title, PERCENTILES)),
            rows=tuple(rows),
            heads=("device", "mode", "system", "load_percent", "metric", "n", "mean", "ci_low", "ci_high"),
            records=tuple(records),
            emulated=max(lab_words(summary) for summary in found),
            figures={
                f"{SUITE}-{device}-{mode}": partial(_draw, device, mode, where, dict(cells), systems)
                for device, mode in panels
            },
        )
    ]


def _title(percent: float) -> str:
    return f"p{percent:g}, us"


def _row(key: Key, cell: Cell, broken: bool) -> tuple[str, ...]:
    device, mode, system, load = key
    tails = [some_text(cell[tail_metric(percent)], len(cell["done"]), 1) for percent in PERCENTILES]
    return (
        DEVICES.get(device, device),
        mode,
        SYSTEMS.get(system, system),
        f"{load}{'*' * broken}",
        f"{interval_of(cell['offered']).value:.3f}" if cell["offered"] else NO_VALUE,  # type: ignore[union-attr]
        interval_text(interval_of(cell["done"]), 3),
        *tails,
    )


def _draw(device: str, mode: str, where: str, cells: Mapping[Key, Cell], systems: Sequence[str]) -> Any:
    """A panel a percentile, a curve a system, over what was offered in absolute terms."""
    figure = drawing.new_figure(3.6 * len(PERCENTILES) + 0.5, 3.6)
    axes = figure.subplots(1, len(PERCENTILES), sharey=True, squeeze=False)[0]
    shown: list[Interval] = []
    for axis, percent in zip(axes, PERCENTILES, strict=True):
        for system in systems:
            line = []
            for key in sorted(cells):
                if key[:3] == (device, mode, system) and (latency := interval_of(cells[key][tail_metric(percent)])):
                    offered = interval_of(cells[key]["offered"])
                    line.append((offered.value if offered else 0.0, latency))
            if line:
                x, latencies = zip(*line, strict=True)
                shown += latencies
                y = [latency.value for latency in latencies]
                half = drawing.half_widths(latencies)
                below = [min(one, value * (1 - LEAST)) for one, value in zip(half, y, strict=True)] if half else None
                own = look(system, systems)
                style = {"color": own.colour, "linestyle": own.line, "marker": own.marker}
                sizes = {"markersize": 3, "capsize": 2, "linewidth": 1.4, "elinewidth": 0.8}
                axis.errorbar(x, y, half and (below, half), label=SYSTEMS.get(system, system), **style, **sizes)
        axis.set_yscale("log")
        axis.set_xlim(left=0)
        axis.set_title(f"p{percent:g}", fontsize=9)
        axis.set_xlabel("offered load, kop/s")
        axis.grid(alpha=0.3)
    # By the means: an interval of few runs may reach to 0 and beyond all of them.
    if drawn := [latency.value for latency in shown]:
        axes[0].set_ylim(min(drawn) / 2, max(drawn) * 2)
    axes[0].set_ylabel("latency from the intended start, us")
    drawing.legend(axes, axes[-1])
    what = f"{mode} on {DEVICES.get(device, device)}, open loop, {where}"
    figure.suptitle(what + drawing.intervals_text(shown), fontsize=10)
    return figure
