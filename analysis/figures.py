# SPDX-License-Identifier: BSD-3-Clause
"""Figures for papers, as PNG and SVG: the same data give the same bytes (with the same matplotlib)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.lines
import matplotlib.patches
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from userblk.harness.observing.histogram import distribution

from . import drawing
from .palette import heat, look
from .paper_cells import PaperCell
from .raw import Band, CellDetails
from .render import signed, unit_text
from .statistics import Interval
from .table import DEVICES, METRICS, NATIVE, RATE, SYSTEMS, Metric, Table

INCH = 25.4  # mm
SIDE_BY_SIDE = 4  # systems whose names fit beside each other below bars
WIDTH = 178 / INCH  # of a page with two columns
# An axis of percentiles, where the distances to 100 % shrink by tens.
PERCENTS = tuple(100 * (1 - 10 ** (-step / 16)) for step in range(65))  # 0 to 99.99
NINES = (0.0, 90.0, 99.0, 99.9, 99.99)


@dataclass(frozen=True)
class SystemRow:
    """A system in a row of a table: mean throughput, that of every valid run, and details where raw files are."""

    system: str
    mean: Interval | None
    sample: tuple[float, ...]
    details: CellDetails | None


@dataclass(frozen=True)
class Row:
    """What a figure of one workload on one device shows. place, emulated: for the title; metric: of the bars."""

    name: str
    place: str
    device: str
    workload: str
    emulated: str  # as Run.emulated
    systems: tuple[SystemRow, ...]
    metric: Metric = METRICS[0]


def _figure(height_mm: float) -> Figure:
    figure = Figure(figsize=(WIDTH, height_mm / INCH))
    FigureCanvasAgg(figure)
    return figure


def _title(figure: Figure, text: str, emulated: str) -> None:
    """In smaller letters if it is longer than the figure is wide."""
    words = text + (f"  {emulated}" if emulated else "")
    title = figure.suptitle(words, x=0.01, y=0.995, ha="left", va="top", fontsize=8)
    room, width = 0.98 * figure.bbox.width, title.get_window_extent().width
    title.set_fontsize(8 * min(1.0, room / width))


def _signed(value: float, decimals: int) -> str:
    return signed(value, decimals).replace("-", "\N{MINUS SIGN}")


# ---- overview of a table ------------------------------------------------------------


LETTER = 0.0078  # of a workload's name, of the width of a figure


def _longest(names: Iterable[str]) -> int:
    """Letters."""
    return max(map(len, names), default=0)


def heat_map(table: Table) -> Figure:
    """Every difference to native: a panel for each metric, a column for each system."""
    systems = [system for system in table.systems if system != NATIVE]
    count = len(table.rows)
    left = max(0.205, 0.045 + LETTER * _longest(workload for _, workload in table.rows))
    # Names that do not fit beside each other are slanted, which takes room above them and beside the last one.
    longest = LETTER * _longest(SYSTEMS.get(name, name) for name in systems)
    slanted = longest * len(systems) * len(METRICS) > 1 - left
    slant = {"rotation": 40, "ha": "left", "rotation_mode": "anchor"} if slanted else {}
    head = WIDTH * INCH * longest * math.sin(math.radians(40)) if slanted else 0
    beside = longest * math.cos(math.radians(40)) - 0.3 / len(METRICS) / max(1, len(systems))
    figure = _figure(20 + head + 3.9 * count)
    _title(figure, f"{table.label}: difference to native, darker red is worse, blue is better", table.emulated)
    height = figure.get_figheight() * INCH
    all_axes = figure.subplots(1, len(METRICS), gridspec_kw={"wspace": 0.04})
    figure.subplots_adjust(
        left=left, right=1 - max(0.07, beside) if slanted else 0.995, top=1 - (15 + head) / height, bottom=3 / height
    )
    devices = [device for device, _ in table.rows]
    borders = [y for y in range(1, count) if devices[y] != devices[y - 1]]
    for axes, metric in zip(all_axes, METRICS, strict=True):
        for y, (device, workload) in enumerate(table.rows):
            for x, system in enumerate(systems):
                cell = table.cell(device, workload, system, metric)
                if cell.difference is None:
                    axes.text(x + 0.5, y + 0.5, "–", ha="center", va="center", fontsize=6, color="#777777")
                    continue
                fill, ink = heat(metric, cell.difference.value)
                axes.add_patch(matplotlib.patches.Rectangle((x, y), 1, 1, facecolor=fill, edgecolor="white", lw=0.5))
                decimals = 0 if metric.points or abs(cell.difference.value) >= 100 else 1
                text = _signed(cell.difference.value, decimals)
                axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=6, color=ink)
        for y in borders:
            axes.axhline(y, color="#000000", lw=0.8)
        axes.set_xlim(0, max(1, len(systems)))
        axes.set_ylim(count, 0)
        axes.xaxis.tick_top()
        axes.set_xticks([x + 0.5 for x in range(len(systems))], [SYSTEMS.get(name, name) for name in systems], **slant)
        unit = "points" if metric.points else "%"
        axes.set_title(f"{metric.title} ({unit})", y=1.0, pad=14 + 0.85 * head * 72 / INCH)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_yticks([])
    all_axes[0].set_yticks(
        [y + 0.5 for y in range(count)], [f"{DEVICES.get(device, device)}  {name}" for device, name in table.rows]
    )
    return figure


def whiskers(table: Table, device: str) -> Figure:
    """One device's differences to native, or means where there is none, with intervals: a row for each workload."""
    systems = [system for system in table.systems if system != NATIVE]
    rows = [workload for one, workload in table.rows if one == device]
    figure = _figure(26 + 6.2 * len(rows))
    height = figure.get_figheight() * INCH
    shown = {key: table.printed(key[2], cell) for key, cell in table.cells.items() if key[2] in systems}
    if any(interval is not None and interval.half is not None for interval in shown.values()):
        intervals = "95 % confidence intervals"
    else:
        intervals = "single runs" if all(table.cells[key].n <= 1 for key in shown) else "without intervals"
    what = "difference to native" if table.base else "means"
    _title(figure, f"{table.label}, {DEVICES.get(device, device)}: {what}, {intervals}", table.emulated)
    metrics = table.metrics
    all_axes = figure.subplots(1, len(metrics), sharey=True, squeeze=False, gridspec_kw={"wspace": 0.07})[0]
    left = max(0.155, LETTER * _longest(rows))
    figure.subplots_adjust(left=left, right=0.985, top=1 - 16 / height, bottom=10 / height)
    step = 0.7 / max(1, len(systems))
    for axes, metric in zip(all_axes, metrics, strict=True):
        values: list[float] = []
        for index, system in enumerate(systems):
            style = look(system, table.systems)
            for y, workload in enumerate(rows):
                interval = shown.get((device, workload, system, metric.id))
                if interval is None:
                    continue
                at = y + (index - (len(systems) - 1) / 2) * step
                values.append(interval.value)
                if interval.low is not None and interval.high is not None:
                    axes.plot([interval.low, interval.high], [at, at], color=style.colour, lw=0.9)
                axes.plot([interval.value], [at], style.marker, color=style.colour, ms=3.2, mec="none")
        axes.axvline(0, color="#000000", lw=0.7)
        for y in range(0, len(rows), 2):
            axes.axhspan(y - 0.5, y + 0.5, color="#f4f4f4", lw=0, zorder=0)
        if table.base:
            _difference_scale(axes, metric, values)
        else:
            top = max(values, default=0.0) or 1.0
            axes.set_xlim(-0.04 * top, 1.15 * top)
            axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.set_title(metric.title)
        axes.set_xlabel(unit_text(table, metric, systems[0]))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    figure.legend(
        handles=[_handle(system, table.systems, line=False) for system in systems],
        loc="upper left", bbox_to_anchor=(0.0, 1 - 5 / height), ncol=8, columnspacing=1.4, handletextpad=0.3,
    )  # fmt: skip
    return figure


def _difference_scale(axes: Any, metric: Metric, values: Sequence[float]) -> None:
    """Around the values, not around the ends of wide intervals; latency grows without limit, so its axis is bent."""
    if metric.sign < 0 and not metric.points:
        axes.set_xscale("symlog", linthresh=100, linscale=1.0)
        top = max([100.0, *values]) * 1.6
        axes.set_xlim(-110, top)
        ticks = [tick for tick in (-50, 0, 50, 100, 1000, 10000, 100000) if tick <= top]
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_major_formatter(FixedFormatter([_signed(tick, 0) for tick in ticks]))
        axes.xaxis.set_minor_locator(NullLocator())
        return
    low, high = min([0.0, *values]), max([0.0, *values])
    room = max(5.0, 0.2 * (high - low))
    axes.set_xlim(max(-105.0, low - room), high + room)
    axes.xaxis.set_major_locator(MaxNLocator(6))


def _handle(system: str, systems: Sequence[str], line: bool) -> Any:
    style = look(system, systems)
    return matplotlib.lines.Line2D(
        [], [], color=style.colour, marker="" if line else style.marker, ms=4, mec="none",
        ls=style.line if line else "none", label=SYSTEMS.get(system, system),
    )  # fmt: skip


def scatter(cells: Sequence[PaperCell], label: str, emulated: str) -> Figure:
    """
    Differences to native, or another base, over the paper's: a panel a metric that both have, a point a cell, the
    diagonal.
    """
    base = SYSTEMS.get(cells[0].base, cells[0].base) if cells[0].base != NATIVE else "native"
    systems = list(dict.fromkeys(cell.system for cell in cells))
    figure = _figure(78)
    _title(figure, f"{label}: difference to {base}, ours over the paper's", emulated)
    metrics = [metric for metric in (*METRICS, RATE) if any(cell.metric == metric for cell in cells if cell.ours)]
    all_axes = figure.subplots(1, len(metrics), gridspec_kw={"wspace": 0.28}, squeeze=False)[0]
    figure.subplots_adjust(left=0.075, right=0.985, top=0.8, bottom=0.135)
    for axes, metric in zip(all_axes, metrics, strict=True):
        unit = "points" if metric.points else "%"
        both: list[float] = [0.0]
        for system in systems:
            own = [cell for cell in cells if (cell.system, cell.metric) == (system, metric)]
            held = [(cell.paper, cell.ours.value) for cell in own if cell.ours]
            style = look(system, systems)
            theirs, ours = zip(*held, strict=True) if held else ((), ())
            axes.plot(theirs, ours, style.marker, color=style.colour, ms=3.4, mec="none", alpha=0.8)
            both += [value for pair in held for value in pair]
        room = max(5.0, 0.06 * (max(both) - min(both)))
        if metric.sign < 0 and not metric.points:  # latency grows without limit
            ends = -110.0, 1.6 * max(100.0, *both)
            for set_scale in (axes.set_xscale, axes.set_yscale):
                set_scale("symlog", linthresh=100, linscale=1.0)
            ticks = [tick for tick in (-100, 0, 100, 1000, 10000) if tick <= ends[1]]
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(FixedLocator(ticks))
                axis.set_major_formatter(FixedFormatter([_signed(tick, 0) for tick in ticks]))
                axis.set_minor_locator(NullLocator())
        else:
            ends = min(both) - room, max(both) + room
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(6))
        axes.plot(ends, ends, color="#000000", lw=0.7)
        axes.axhline(0, color="#bbbbbb", lw=0.5, zorder=0)
        axes.axvline(0, color="#bbbbbb", lw=0.5, zorder=0)
        axes.set_xlim(ends)
        axes.set_ylim(ends)
        axes.set_aspect("equal", adjustable="box")
        axes.set_title(f"{metric.title} ({unit})")
        axes.set_xlabel("paper")
    all_axes[0].set_ylabel("ours")
    figure.legend(
        handles=[_handle(system, systems, line=False) for system in systems],
        loc="upper left", bbox_to_anchor=(0.0, 0.955), ncol=8, columnspacing=1.4, handletextpad=0.3,
    )  # fmt: skip
    return figure


# ---- one workload --------------------------------------------------------------------


def _plain(axes: Any, title: str, x: str) -> None:
    axes.set_title(title, loc="left", y=1.0)  # given, or matplotlib looks at all labels for each drawing
    axes.set_xlabel(x)
    axes.grid(axis="y", color="#e6e6e6", lw=0.5)
    axes.set_axisbelow(True)


def _band(axes: Any, band: Band, step_s: float, system: str, systems: Sequence[str]) -> None:
    style = look(system, systems)
    steps = enumerate(zip(band.mean, band.low, band.high, strict=True), 1)
    held = [(step_s * at, *values) for at, values in steps if values[0] is not None]
    if not held:
        return
    times, mean, low, high = zip(*held, strict=True)
    line = {"dashes": style.dash} if style.dash else {}
    marker = style.marker if len(held) < 12 else ""
    axes.plot(times, mean, color=style.colour, marker=marker, ms=2.4, mec="none", **line)
    if any(a != b for a, b in zip(low, high, strict=True)):
        axes.fill_between(times, low, high, color=style.colour, alpha=0.12, lw=0)


def details(row: Row) -> Figure:
    """Mean throughput with its interval and runs, throughput and latency over time, distribution of latency."""
    figure = _figure(104)
    _title(figure, f"{DEVICES.get(row.device, row.device)} {row.workload}, {row.place}", row.emulated)
    names = [one.system for one in row.systems]
    ((bars, speed), (delay, spread)) = figure.subplots(2, 2, gridspec_kw={"wspace": 0.2, "hspace": 0.42})
    figure.subplots_adjust(left=0.085, right=0.975, top=0.84, bottom=0.09)
    intervals: list[tuple[int, float, float]] = []
    samples: list[tuple[float, float]] = []
    for at, one in enumerate(row.systems):
        style = look(one.system, names)
        if one.mean is not None:
            bars.bar(at, one.mean.value, 0.62, color=style.colour, alpha=0.85, lw=0)
            if one.mean.low is not None and one.mean.high is not None:
                # Its lower end may be below nothing, where there is no axis.
                intervals.append((at, max(0.0, one.mean.low), one.mean.high))
        if len(one.sample) > 1:
            samples += [(at + 0.2, value) for value in one.sample]
        if one.details is None:
            continue
        _band(speed, one.details.kops, one.details.step_s, one.system, names)
        _band(delay, one.details.latency_us, one.details.step_s, one.system, names)
        found = distribution(one.details.bins, PERCENTS)
        held = [(100 / (100 - p), value / 1e3) for p, value in zip(PERCENTS, found, strict=True) if value is not None]
        if held:
            line = {"dashes": style.dash} if style.dash else {}
            spread.plot(*zip(*held, strict=True), color=style.colour, **line)
    if intervals:
        places, lows, highs = zip(*intervals, strict=True)
        bars.vlines(places, lows, highs, color="#000000", lw=0.9, zorder=3)
        bars.plot(places + places, lows + highs, "_", color="#000000", ms=8, mew=0.9, zorder=3)
    if samples:
        bars.plot(*zip(*samples, strict=True), ".", color="#555555", ms=2.5, mec="none", zorder=4)
    several = bool(samples)
    _plain(bars, f"{row.metric.title} ({row.metric.unit}): mean" + ", 95 % interval, runs" * several, "")
    slanted = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if len(names) > SIDE_BY_SIDE else {}
    bars.set_xticks(range(len(names)), [SYSTEMS.get(name, name) for name in names], **slanted)
    bars.tick_params(axis="x", length=0)
    _plain(speed, "Throughput (kop/s) over time" + ": mean, range of runs" * several, "s")
    _plain(delay, "Latency (us) over time".replace("us", "\N{MICRO SIGN}s"), "s")
    for axes in (bars, speed, delay):
        axes.set_ylim(bottom=0)
    for axes in (speed, delay):
        axes.set_xlim(left=0)
    _plain(spread, "Latency (\N{MICRO SIGN}s) by percentile, all operations of all runs", "percentile")
    if spread.lines:
        spread.set_yscale("log")
        spread.yaxis.set_major_locator(LogLocator(numticks=12))
        spread.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        spread.yaxis.set_minor_locator(NullLocator())
    spread.set_xscale("log")
    spread.set_xlim(1, 1e4)
    spread.xaxis.set_major_locator(FixedLocator([100 / (100 - percent) for percent in NINES]))
    spread.xaxis.set_major_formatter(FixedFormatter([f"{percent:g}" for percent in NINES]))
    spread.xaxis.set_minor_locator(NullLocator())
    for axes in (speed, delay, spread):
        if not axes.lines:
            axes.set_axis_off()
            axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color="#777777")
    figure.legend(
        handles=[_handle(name, names, line=True) for name in names],
        loc="upper left", bbox_to_anchor=(0.0, 0.965), ncol=7, columnspacing=1.0, handlelength=2.0,
    )  # fmt: skip
    return figure


# ---- all of them ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    name: str
    draw: Callable[..., Figure]
    arguments: tuple[Any, ...]
    directory: Path

    def run(self) -> None:
        paths = [self.directory / f"{self.name}.{kind}" for kind in drawing.METADATA]
        drawing.write(partial(self.draw, *self.arguments), paths)


def _run(task: _Task) -> None:
    task.run()


def table_name(table: Table, several_hosts: bool) -> str:
    """The file name of a table's figures."""
    return f"{table.host}-{table.suite}" if several_hosts else table.suite


def beside_paper(cells: Sequence[PaperCell], table: Table) -> list[PaperCell]:
    """The differences of one table that both have: what its scatter shows."""
    where = (table.host, table.suite)
    return [c for c in cells if c.ours and not c.absolute and (c.host, c.suite) == where]


def write_figures(
    tables: Sequence[Table], rows: Sequence[Row], cells: Sequence[PaperCell], directory: Path
) -> list[str]:
    """All figures of a campaign; returns their names, each with .png and .svg. cells: beside the paper."""
    directory.mkdir(parents=True, exist_ok=True)
    several = len({table.host for table in tables}) > 1
    tasks = []
    for table in tables:
        if table.systems == (table.base,):  # nothing beside it
            continue
        name = table_name(table, several)
        if table.base:
            tasks.append(_Task(f"{name}-heatmap", heat_map, (table,), directory))
        for device in dict.fromkeys(device for device, _ in table.rows):
            tasks.append(_Task(f"{name}-{device}-intervals", whiskers, (table, device), directory))
        beside = beside_paper(cells, table)
        if beside:
            tasks.append(_Task(f"{name}-paper", scatter, (beside, table.label, table.emulated), directory))
    tasks += [_Task(row.name, details, (row,), directory) for row in rows]
    # Processes: matplotlib draws in one thread.
    with ProcessPoolExecutor(max_workers=min(len(tasks) or 1, os.cpu_count() or 1)) as pool:
        list(pool.map(_run, tasks, chunksize=4))
    return [task.name for task in tasks]
