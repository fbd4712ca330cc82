# SPDX-License-Identifier: BSD-3-Clause
"""Prints tables: terminal (rich), Markdown, CSV in the paper's layout, CSV in long form."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.style import Style
from rich.table import Table as Grid
from rich.text import Text

from .statistics import Interval
from .table import DEVICES, FILES, MARK_TEXT, METRICS, NATIVE, SYSTEMS, Cell, Mark, Metric, Table, column_name

LIGHT, DARK = (253, 236, 220), (110, 20, 15)  # of a cell as good as native; of a total loss
WHITE, BLACK = "#ffffff", "#000000"
NO_INTERVAL = "±?"

Column = tuple[Metric, str]


# ---- numbers --------------------------------------------------------------------


def _signed(value: float, decimals: int) -> str:
    """As the paper writes differences: a sign unless it is 0."""
    text = f"{value:+.{decimals}f}"
    return text[1:] if float(text) == 0 else text


def _decimals(table: Table, metric: Metric, relative: bool) -> int:
    if metric.points:
        return table.decimals_cpu
    return 1 if relative else 2


def shown(cell: Cell, system: str) -> Interval | None:
    """What the cell shows: the mean for native, the difference for the others."""
    return cell.mean if system == NATIVE else cell.difference


def value_text(table: Table, metric: Metric, system: str, cell: Cell) -> str:
    """The value alone, as in the paper; empty if there is none."""
    interval = shown(cell, system)
    if interval is None:
        return ""
    decimals = _decimals(table, metric, system != NATIVE)
    return _signed(interval.value, decimals) if system != NATIVE else f"{interval.value:.{decimals}f}"


def cell_text(table: Table, metric: Metric, system: str, cell: Cell) -> str:
    """The value, its interval and its marks: complete without any colour."""
    value = value_text(table, metric, system, cell)
    signs = "".join(mark.value for mark in (Mark.BETTER, Mark.WIDE, Mark.UNSTEADY) if mark in cell.marks)
    bad = f" {Mark.INVALID.value}{cell.invalid}" if Mark.INVALID in cell.marks else ""
    if not value:
        return ("no native" if cell.mean else "-") + bad
    interval = shown(cell, system)
    if cell.n == 1:
        value += "" if table.single else f" {Mark.SINGLE.value}"
    elif cell.n > 1:
        half = interval.half if interval else None
        value += f" {NO_INTERVAL}" if half is None else f" ±{half:.{_decimals(table, metric, system != NATIVE)}f}"
    return value + signs + bad


def legend(table: Table) -> list[str]:
    """What the numbers and the marks that occur mean, a line each."""
    lines = []
    cells = [(key[2], cell) for key, cell in table.cells.items()]
    if len(table.systems) > 1:
        lines.append("Native: absolute. Others: difference to native in % (throughput, latency) or points (CPU).")
    if any(interval.half is not None for system, cell in cells if (interval := shown(cell, system))):
        lines.append("±: half width of the 95 % confidence interval; of a difference the wider half.")
    if any(NO_INTERVAL in cell_text(table, METRICS[0], system, cell) for system, cell in cells):
        lines.append(f"{NO_INTERVAL}: no interval: native has a single run, or cannot be told from 0.")
    used = {mark for _, cell in cells for mark in cell.marks}
    if table.single:
        used.discard(Mark.SINGLE)  # a note says so of the whole table
    lines += [f"{mark.value}: {MARK_TEXT[mark]}." for mark in Mark if mark in used]
    if any(not cell.n and cell.mean is None and cell.difference is None for _, cell in cells):
        lines.append("-: no result.")
    return lines


# ---- terminal -------------------------------------------------------------------


def badness(metric: Metric, difference: float) -> float:
    """0: as native or better; 1: total loss. A latency grows without limit, so its inverse is used."""
    loss = -metric.sign * difference
    if metric.points:
        loss = loss / 50.0
    elif metric.sign > 0:
        loss = loss / 100.0
    else:
        loss = loss / (100.0 + loss) if loss > 0 else 0.0
    return min(1.0, max(0.0, loss))


def cell_style(metric: Metric, system: str, cell: Cell) -> Style:
    """The darker the worse; white for an improvement, as in the paper."""
    if system == NATIVE or cell.difference is None:
        return Style.null()
    if Mark.BETTER in cell.marks:
        return Style(color=BLACK, bgcolor=WHITE, bold=True)
    loss = badness(metric, cell.difference.value)
    red, green, blue = (round(light + (dark - light) * loss) for light, dark in zip(LIGHT, DARK, strict=True))
    return Style(color=BLACK if loss < 0.5 else WHITE, bgcolor=f"#{red:02x}{green:02x}{blue:02x}")


def _header(metric: Metric, system: str, first: bool) -> str:
    unit = metric.unit if system == NATIVE else "points" if metric.points else "%"
    return f"{metric.title if first else ''}\n{SYSTEMS.get(system, system)}\n{unit}"


def _grid(table: Table, columns: Sequence[Column], rows: Sequence[tuple[str, str]]) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    grid.add_column("\nDevice", no_wrap=True)
    grid.add_column("\nWorkload", no_wrap=True)
    previous: Metric | None = None
    for metric, system in columns:
        grid.add_column(_header(metric, system, metric is not previous), justify="right", no_wrap=True)
        previous = metric
    last = ""
    for device, workload in rows:
        if last and device != last:
            grid.add_section()
        texts = [Text(DEVICES.get(device, device) if device != last else ""), Text(workload)]
        last = device
        for metric, system in columns:
            cell = table.cell(device, workload, system, metric)
            texts.append(Text(cell_text(table, metric, system, cell), cell_style(metric, system, cell)))
        grid.add_row(*texts)
    return grid


def _layouts(systems: Sequence[str], narrow_metrics: int) -> Iterable[list[list[Column]]]:
    """Ways to cut the columns into grids, the widest first."""
    yield [[(metric, system) for metric in METRICS for system in systems]]
    others = [system for system in systems if system != NATIVE]
    head = [system for system in systems if system == NATIVE]
    for size in range(max(1, len(others)), 0, -1):
        chunks = [head + others[at : at + size] for at in range(0, max(1, len(others)), size)]
        yield [[(metric, system) for system in chunk] for metric in METRICS[:narrow_metrics] for chunk in chunks]


def grids(
    table: Table,
    console: Console,
    rows: Sequence[tuple[str, str]] | None = None,
    narrow_metrics: int = len(METRICS),
) -> RenderableType:
    """The table's rows (all of them by default) in one grid, or in several where the console is narrow.

    narrow_metrics: how many of the metrics are shown then.
    """
    chosen = table.rows if rows is None else rows
    unbounded = console.options.update(max_width=10_000)
    parts: list[Grid] = []
    for layout in _layouts(table.systems, narrow_metrics):
        parts = [_grid(table, columns, chosen) for columns in layout]
        if all(Measurement.get(console, unbounded, part).maximum <= console.width for part in parts):
            break
    spaced: list[RenderableType] = [parts[0]]
    for part in parts[1:]:
        spaced += ["", part]
    return Group(*spaced)


def terminal(table: Table, console: Console) -> RenderableType:
    """The whole table with title, notes and legend."""
    notes = "\n".join([*table.notes, *legend(table)])
    title = Text(table.title, style="bold reverse" if table.emulated else "bold")
    return Group(title, "", grids(table, console), "", Text(notes))


# ---- Markdown and CSV -----------------------------------------------------------


def markdown(tables: Sequence[Table]) -> str:
    """Every table as a heading, a pipe table and its notes."""
    lines: list[str] = []
    for table in tables:
        columns = [(metric, system) for metric in METRICS for system in table.systems]
        heads = ["Device", "Workload"]
        for metric, system in columns:
            unit = metric.unit if system == NATIVE else "points" if metric.points else "%"
            heads.append(f"{metric.title} {SYSTEMS.get(system, system)} ({unit})")
        lines += [f"### {table.title}", "", "| " + " | ".join(heads) + " |"]
        lines.append("|---|---|" + "---:|" * len(columns))
        for device, workload in table.rows:
            texts = [DEVICES.get(device, device), workload]
            for metric, system in columns:
                text = cell_text(table, metric, system, table.cell(device, workload, system, metric))
                texts.append(text.replace("*", r"\*").replace("~", r"\~"))
            lines.append("| " + " | ".join(texts) + " |")
        lines.append("")
        for note in (*table.notes, *legend(table)):
            lines.append("- " + note.replace("*:", r"\*:").replace("~:", r"\~:"))
        lines.append("")
    return "\n".join(lines)


def csv_wide(tables: Sequence[Table]) -> str:
    """The paper's layout and rounding, with the column names of configs/paper.

    The first two columns are the paper's; where there are several tables or the numbers are
    emulated, the place is in a last column.
    """
    systems = list(dict.fromkeys(system for table in tables for system in table.systems))
    placed = any(table.emulated for table in tables) or len(tables) > 1
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = [(metric, system) for metric in METRICS for system in systems]
    heads = ["device", "workload", *(column_name(metric, system) for metric, system in columns)]
    writer.writerow(heads + ["measured"] * placed)
    for table in tables:
        for device, workload in table.rows:
            values = [
                value_text(table, metric, system, table.cell(device, workload, system, metric))
                for metric, system in columns
            ]
            writer.writerow([DEVICES.get(device, device), workload, *values] + [table.title] * placed)
    return out.getvalue()


def _ends(interval: Interval | None) -> tuple[str, str, str]:
    """Value, low and high, empty where there is none; repr() keeps every digit."""
    if interval is None:
        return "", "", ""
    low, high = ("" if end is None else repr(end) for end in (interval.low, interval.high))
    return repr(interval.value), low, high


def csv_long(tables: Sequence[Table]) -> str:
    """One line for each cell, in full precision, both ends of every interval, marks by name."""
    heads = "measured device workload system metric unit n invalid mean ci_low ci_high"
    heads += " diff diff_unit diff_ci_low diff_ci_high marks"
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads.split())
    for table in tables:
        for (device, workload, system, name), cell in table.cells.items():
            metric = next(metric for metric in (*METRICS, FILES) if metric.id == name)
            place = [table.title, device, workload, system, name, metric.unit]
            value, low, high = _ends(cell.difference)
            unit = "" if cell.difference is None else "points" if metric.points else "%"
            marks = " ".join(mark.name.lower() for mark in Mark if mark in cell.marks)
            writer.writerow([*place, cell.n, cell.invalid, *_ends(cell.mean), value, unit, low, high, marks])
    return out.getvalue()
