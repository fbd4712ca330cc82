# SPDX-License-Identifier: BSD-3-Clause
"""Throughput, tail and CPU time per request over depth and jobs: suite depth-jobs, as a table and heat maps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from . import drawing
from .report import ALL_HOSTS, INTERVALS, Report, interval_fields, interval_of, of_suite, place, some_text, summaries_of
from .summaries import lab_words, read_json
from .sweep import POINT, block_bytes
from .table import DEVICES, SYSTEMS, ordered

SUITE = "depth-jobs"
# By name: title, decimals in the table, and whether more is better.
MEASURES = {
    "throughput_kops": ("Throughput, kop/s", 1, True),
    "latency_p99_us": ("p99, us", 1, False),
    "cpu_us_per_request": ("CPU per request, us", 2, False),
}
NOTES = (
    "fio, io_uring, direct. CPU per request: busy time of all of the machine's CPUs, that of fio included, divided by"
    " requests.",
    "p99: the mean over runs of each run's; none (-, not in) where fewer than ten of its requests lie beyond.",
    INTERVALS,
)

Point = tuple[int, int]  # depth, jobs
Place = tuple[str, str, str]  # device, mode, block size
Cell = dict[str, list[float]]  # of each measure, a value a run
Cells = dict[tuple[Place, str, Point], Cell]  # by system, too


def reports(directory: Path, host: str = ALL_HOSTS) -> list[Report]:
    """The reports on a campaign; none without a finished run. Raises SummaryError."""
    found = list(summaries_of(directory, SUITE, host))
    if not found:
        return []
    cells: Cells = defaultdict(lambda: defaultdict(list))
    for path, summary in found:
        match = POINT.fullmatch(summary["workload"])
        if not summary["valid"] or not match:
            continue
        mode, jobs, depth, size = match.groups()
        cell = cells[(summary["device"], mode, size), summary["system"], (int(depth), int(jobs))]
        metrics = dict(summary["metrics"])
        if metrics.get("cpu_percent") is not None and metrics.get("throughput_kops"):
            file = path / "environment.json"
            with of_suite(SUITE, file):
                cpus = int(read_json(file)["cpus"])
            busy = metrics["cpu_percent"] / 100 * cpus
            metrics["cpu_us_per_request"] = busy * 1e3 / metrics["throughput_kops"]
        for name in MEASURES:
            if metrics.get(name) is not None:
                cell[name].append(float(metrics[name]))
    systems = ordered({system for _, system, _ in cells}, SYSTEMS)
    order = sorted(cells, key=lambda key: (key[0][:2], block_bytes(key[0][2]), systems.index(key[1]), key[2]))
    summaries = [summary for _, summary in found]
    where, facts = place(summaries)
    rows = [
        (
            DEVICES.get(where_of[0], where_of[0]),
            *where_of[1:],
            SYSTEMS.get(system, system),
            str(depth),
            str(jobs),
            *(
                some_text(cell[name], len(cell["throughput_kops"]), decimals)
                for cell in (cells[where_of, system, (depth, jobs)],)
                for name, (_, decimals, _) in MEASURES.items()
            ),
        )
        for where_of, system, (depth, jobs) in order
    ]
    records = [
        (*where_of, system, str(depth), str(jobs), name, str(len(values)), *interval_fields(interval_of(values)))
        for where_of, system, (depth, jobs) in order
        for name, values in cells[where_of, system, (depth, jobs)].items()
    ]
    return [
        Report(
            name=SUITE,
            title=f"Over depth and jobs, {where}",
            notes=(*facts, *NOTES),
            columns=(
                "Device",
                "Mode",
                "Block",
                "System",
                "Depth",
                "Jobs",
                *(title for title, _, _ in MEASURES.values()),
            ),
            rows=tuple(rows),
            heads=(
                "device",
                "mode",
                "block_size",
                "system",
                "depth",
                "jobs",
                "metric",
                "n",
                "mean",
                "ci_low",
                "ci_high",
            ),
            records=tuple(records),
            emulated=max(map(lab_words, summaries)),
            figures={
                "-".join((SUITE, *one)): partial(_draw, one, where, dict(cells), systems)
                for one in dict.fromkeys(where_of for where_of, _, _ in order)
            },
        )
    ]


def _value(value: float) -> str:
    """In three digits, which is what fits into a square."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _draw(
    what: Place,
    where: str,
    cells: Mapping[tuple[Place, str, Point], Cell],
    systems: Sequence[str],
) -> Any:
    """A row a measure, a column a system; colours mean the same in all of a row, by the logarithm."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FuncFormatter, NullFormatter

    here = [system for system in systems if any(key[:2] == (what, system) for key in cells)]
    points = {point for place, _, point in cells if place == what}
    depths, jobs = (sorted({point[axis] for point in points}) for axis in (0, 1))
    size = (0.75 * len(jobs) * len(here) + 2.5, (0.38 * len(depths) + 0.7) * len(MEASURES) + 0.8)
    figure = drawing.new_figure(max(size[0], 6), size[1])
    axes = figure.subplots(len(MEASURES), len(here), sharex=True, sharey=True, squeeze=False)
    for row, (name, (title, _, more)) in enumerate(MEASURES.items()):
        grids = []
        for system in here:
            means = [[interval_of(cells.get((what, system, (d, j)), {}).get(name, [])) for j in jobs] for d in depths]
            grids.append([[mean.value if mean else float("nan") for mean in line] for line in means])
        known = [value for grid in grids for line in grid for value in line if value > 0]
        if not known:
            continue
        norm, colours = LogNorm(min(known), max(max(known), min(known) * 1.01)), "viridis" if more else "viridis_r"
        for column, grid in enumerate(grids):
            axis = axes[row][column]
            image = axis.imshow(grid, norm=norm, cmap=colours, aspect="auto", origin="lower")
            axis.set_xticks(range(len(jobs)), jobs)
            axis.set_yticks(range(len(depths)), depths)
            for y, line in enumerate(grid):
                for x, value in enumerate(line):
                    if value > 0:
                        bright = float(norm(value)) > 0.6 if more else float(norm(value)) < 0.4
                        ink = "black" if bright else "white"
                        axis.text(x, y, _value(value), ha="center", va="center", fontsize=7, color=ink)
            if row == 0:
                axis.set_title(SYSTEMS.get(here[column], here[column]), fontsize=9)
        plain = FuncFormatter(lambda value, _: f"{value:g}")  # 6, not 6 x 10^0
        bar = figure.colorbar(image, ax=list(axes[row]), format=plain)
        bar.ax.yaxis.set_minor_formatter(plain if max(known) < 10 * min(known) else NullFormatter())
        bar.ax.tick_params(which="both", labelsize=8)
        bar.set_label(title, fontsize=8)
    figure.supxlabel("jobs", fontsize=9)
    figure.supylabel("depth of each job", fontsize=9)
    device, mode, block = what
    figure.suptitle(f"{mode} {block} on {DEVICES.get(device, device)}, {where}", fontsize=10)
    return figure
