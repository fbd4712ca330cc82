# SPDX-License-Identifier: BSD-3-Clause
"""Prints tables: terminal (rich), Markdown, CSV in the paper's layout, CSV in long form."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text

from .statistics import Interval
from .table import (
    DEVICES,
    MARK_TEXT,
    METRICS_BY_ID,
    NATIVE,
    OF_TABLE_1,
    SYSTEMS,
    Cell,
    Mark,
    Metric,
    Table,
    column_name,
)

SIGNS = (Mark.BETTER, Mark.WIDE, Mark.SAME, Mark.UNSTEADY)  # that follow a value

LIGHT, DARK = (253, 236, 220), (110, 20, 15)  # of a cell as good as native; of a total loss
WHITE, BLACK = "#ffffff", "#000000"  # of a cell, and of its text
NO_INTERVAL = "±?"

Column = tuple[Metric, str]


# ---- numbers --------------------------------------------------------------------


def signed(value: float, decimals: int) -> str:
    """As the paper writes differences: a sign unless it is 0."""
    text = f"{value:+.{decimals}f}"
    return text[1:] if float(text) == 0 else text


def _decimals(table: Table, metric: Metric, relative: bool) -> int:
    if metric.points:
        return table.decimals_cpu
    return 1 if relative else 2


def value_text(table: Table, metric: Metric, system: str, cell: Cell) -> str:
    """The value alone, as in the paper; empty if there is none."""
    interval = table.printed(system, cell)
    if interval is None:
        return ""
    absolute = table.absolute(system)
    decimals = _decimals(table, metric, not absolute)
    if cell.grade or absolute:
        return f"{interval.value:.{decimals}f}"
    return signed(interval.value, decimals)


def half_text(table: Table, metric: Metric, system: str, cell: Cell) -> str:
    """The half width of its interval; empty where one run or none can have none."""
    interval = table.printed(system, cell)
    if interval is None or cell.n < 2:
        return ""
    half = interval.half
    return NO_INTERVAL if half is None else f"±{half:.{_decimals(table, metric, not table.absolute(system))}f}"


def sign_text(table: Table, cell: Cell) -> str:
    """The marks that follow a value, and the number of invalid runs."""
    single = f" {Mark.SINGLE.value}" if cell.n == 1 and not table.single else ""
    bad = f" {Mark.INVALID.value}{cell.invalid}" if Mark.INVALID in cell.marks else ""
    grade = f" {cell.grade.sign}" if cell.grade else ""
    absent = f" (not in {cell.absent})" if cell.absent else ""
    return grade + single + "".join(mark.value for mark in SIGNS if mark in cell.marks) + bad + absent


def cell_text(table: Table, metric: Metric, system: str, cell: Cell, ci: bool = True) -> str:
    """The value, its interval if ci, and its marks: complete without any colour."""
    value = value_text(table, metric, system, cell)
    if not value:
        bad = f" {Mark.INVALID.value}{cell.invalid}" if Mark.INVALID in cell.marks else ""
        return (f"no {table.base}" if cell.mean else "-") + bad
    half = half_text(table, metric, system, cell) if ci else ""
    return value + f" {half}" * bool(half) + sign_text(table, cell)


def legend(table: Table, ci: bool = True) -> list[str]:
    """What tests show, and what the numbers and the marks that occur mean, a line each."""
    lines = [table.tests] if table.tests else []
    cells = [(key[2], cell) for key, cell in table.cells.items()]
    base = "native" if table.base == NATIVE else SYSTEMS.get(table.base, table.base)
    if table.base in table.systems and len(table.systems) > 1:
        name = SYSTEMS.get(table.base, table.base)
        lines.append(f"{name}: absolute. Others: difference to {base} in % (throughput, latency) or points (CPU).")
    if ci and any(interval.half is not None for system, cell in cells if (interval := table.printed(system, cell))):
        lines.append("±: half width of the 95 % confidence interval; of a difference the wider half.")
    if ci and any(half_text(table, table.metrics[0], system, cell) == NO_INTERVAL for system, cell in cells):
        lines.append(f"{NO_INTERVAL}: no interval: native has a single run, or does not differ from 0.")
    used = {mark for _, cell in cells for mark in cell.marks}
    if table.single:
        used.discard(Mark.SINGLE)  # a note says so of the whole table
    texts = {mark: MARK_TEXT[mark].replace("native", base) for mark in Mark if mark in used}
    if table.number != 1:
        texts = {mark: words.replace(OF_TABLE_1, "") for mark, words in texts.items()}
    lines += [f"{mark.value}: {words}." for mark, words in texts.items()]
    shown = {metric.id for metric in table.metrics}
    if any(cell.absent for key, cell in table.cells.items() if key[3] in shown):
        lines.append("not in k: k of the valid runs have no such percentile, and are not in the mean.")
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


def mixed(a: Sequence[int], b: Sequence[int], share: float) -> str:
    """The colour between two."""
    return "#" + "".join(f"{round(x + (y - x) * share):02x}" for x, y in zip(a, b, strict=True))


def ink(background: str) -> str:
    """Black or white: the colour of text that has the higher contrast with a background, by WCAG 2.2: at least 4.58."""
    parts = [int(background[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return BLACK if (luminance + 0.05) ** 2 >= 1.05 * 0.05 else WHITE


@dataclass(frozen=True)
class Shade:
    """Colours of a cell, as #rrggbb."""

    background: str
    text: str
    bold: bool = False


def shade(metric: Metric, system: str, cell: Cell) -> Shade | None:
    """The darker the worse; white for an improvement, as in the paper; bold if that is significant."""
    if system == NATIVE or cell.difference is None:
        return None
    if cell.grade:
        return Shade(cell.grade.colour, BLACK)
    if Mark.BETTER in cell.marks:
        return Shade(WHITE, BLACK, cell.p_holm is None or cell.significant)
    loss = badness(metric, cell.difference.value)
    background = mixed(LIGHT, DARK, loss)
    return Shade(background, ink(background))


def cell_style(metric: Metric, system: str, cell: Cell) -> Style:
    colours = shade(metric, system, cell)
    if colours is None:
        return Style.null()
    return Style(color=colours.text, bgcolor=colours.background, bold=colours.bold or None)


def unit_text(table: Table, metric: Metric, system: str) -> str:
    """The unit of a column."""
    return metric.unit if table.absolute(system) else "points" if metric.points else "%"


def _header(table: Table, metric: Metric, system: str, first: bool) -> str:
    return f"{metric.title if first else ''}\n{SYSTEMS.get(system, system)}\n{unit_text(table, metric, system)}"


class Grid(RichTable):
    """One whose strings are text: rich takes what is in brackets for markup, as in a user's title of a system."""

    def add_column(self, header: RenderableType = "", *rest: Any, **options: Any) -> None:
        super().add_column(Text(header) if isinstance(header, str) else header, *rest, **options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def new_grid(*columns: str) -> Grid:
    """An empty grid of the kind that all tables in a terminal are."""
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in columns:
        grid.add_column(column, no_wrap=True)
    return grid


def _grid(table: Table, columns: Sequence[Column], rows: Sequence[tuple[str, str]], ci: bool) -> Grid:
    grid = new_grid("\nDevice", "\nWorkload")
    previous: Metric | None = None
    for metric, system in columns:
        grid.add_column(_header(table, metric, system, metric is not previous), justify="right", no_wrap=True)
        previous = metric
    last = ""
    for device, workload in rows:
        if last and device != last:
            grid.add_section()
        texts = [Text(DEVICES.get(device, device) if device != last else ""), Text(workload)]
        last = device
        for metric, system in columns:
            cell = table.cell(device, workload, system, metric)
            texts.append(Text(cell_text(table, metric, system, cell, ci), cell_style(metric, system, cell)))
        grid.add_row(*texts)
    return grid


def _layouts(
    systems: Sequence[str], metrics: Sequence[Metric], narrow_metrics: int | None
) -> Iterable[list[list[Column]]]:
    """Ways to cut the columns into grids, the widest first."""
    yield [[(metric, system) for metric in metrics for system in systems]]
    others = [system for system in systems if system != NATIVE]
    head = [system for system in systems if system == NATIVE]
    for size in range(max(1, len(others)), 0, -1):
        chunks = [head + others[at : at + size] for at in range(0, max(1, len(others)), size)]
        yield [[(metric, system) for system in chunk] for metric in metrics[:narrow_metrics] for chunk in chunks]


def grids(
    table: Table,
    console: Console,
    rows: Sequence[tuple[str, str]] | None = None,
    narrow_metrics: int | None = None,
    ci: bool = False,
) -> RenderableType:
    """The table's rows (all of them by default) in one grid, or in several where the console is narrow.

    narrow_metrics: how many of the metrics are shown then, None: all. ci: with half widths of intervals.
    """
    chosen = table.rows if rows is None else rows
    unbounded = console.options.update(max_width=10_000)
    parts: list[Grid] = []
    for layout in _layouts(table.systems, table.metrics, narrow_metrics):
        parts = [_grid(table, columns, chosen, ci) for columns in layout]
        if all(Measurement.get(console, unbounded, part).maximum <= console.width for part in parts):
            break
    spaced: list[RenderableType] = [parts[0]]
    for part in parts[1:]:
        spaced += ["", part]
    return Group(*spaced)


def terminal(table: Table, console: Console, ci: bool = False) -> RenderableType:
    """The whole table with title, notes and legend."""
    notes = "\n".join([*table.notes, *legend(table, ci)])
    title = Text(table.title, style="bold reverse" if table.emulated else "bold")
    return Group(title, "", grids(table, console, ci=ci), "", Text(notes))


# ---- Markdown and CSV -----------------------------------------------------------


def markdown(tables: Sequence[Table], ci: bool = False) -> str:
    """Every table as a heading, a pipe table and its notes."""
    lines: list[str] = []
    for table in tables:
        columns = [(metric, system) for metric in table.metrics for system in table.systems]
        heads = ["Device", "Workload"]
        for metric, system in columns:
            heads.append(f"{metric.title} {SYSTEMS.get(system, system)} ({unit_text(table, metric, system)})")
        lines += [f"### {table.title}", "", "| " + " | ".join(heads) + " |"]
        lines.append("|---|---|" + "---:|" * len(columns))
        for device, workload in table.rows:
            texts = [DEVICES.get(device, device), workload]
            for metric, system in columns:
                text = cell_text(table, metric, system, table.cell(device, workload, system, metric), ci)
                texts.append(text.replace("*", r"\*").replace("~", r"\~"))
            lines.append("| " + " | ".join(texts) + " |")
        lines.append("")
        for note in (*table.notes, *legend(table, ci)):
            lines.append("- " + note.replace("*:", r"\*:").replace("~:", r"\~:"))
        lines.append("")
    return "\n".join(lines)


def csv_wide(tables: Sequence[Table], ci: bool = False) -> str:
    """The paper's layout and rounding, with the column names of the BDUS paper's own.

    The first two columns are the paper's. ci: half widths are in columns of their own behind the values; where there
    are several tables or the numbers are emulated, the place is in a last column.
    """
    systems = list(dict.fromkeys(system for table in tables for system in table.systems))
    placed = any(table.emulated for table in tables) or len(tables) > 1
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    metrics = dict.fromkeys(metric for table in tables for metric in table.metrics)
    columns = [(metric, system) for metric in metrics for system in systems]
    heads = ["device", "workload", *(column_name(metric, system) for metric, system in columns)]
    halves = [f"{column_name(metric, system)}_half" for metric, system in columns] if ci else []
    writer.writerow(heads + halves + ["measured"] * placed)
    for table in tables:
        for device, workload in table.rows:
            values = [
                value_text(table, metric, system, table.cell(device, workload, system, metric))
                for metric, system in columns
            ]
            if ci:
                texts = (
                    half_text(table, metric, system, table.cell(device, workload, system, metric))
                    for metric, system in columns
                )
                values += [text.removeprefix(NO_INTERVAL).removeprefix("±") for text in texts]
            writer.writerow([DEVICES.get(device, device), workload, *values] + [table.title] * placed)
    return out.getvalue()


def ends(interval: Interval | None) -> tuple[str, str, str]:
    """Value, low and high, empty where there is none; repr() keeps every digit."""
    if interval is None:
        return "", "", ""
    low, high = ("" if end is None else repr(end) for end in (interval.low, interval.high))
    return repr(interval.value), low, high


def csv_long(tables: Sequence[Table]) -> str:
    """One line for each cell, in full precision, both ends of every interval, marks by name."""
    heads = "measured device workload system metric unit n invalid mean ci_low ci_high"
    heads += " diff diff_unit diff_ci_low diff_ci_high p p_holm marks"
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads.split())
    for table in tables:
        for (device, workload, system, name), cell in table.cells.items():
            metric = METRICS_BY_ID[name]
            place = [table.title, device, workload, system, name, metric.unit]
            value, low, high = ends(cell.difference)
            unit = "" if cell.difference is None else "points" if metric.points else "%"
            marks = " ".join(
                [mark.name.lower() for mark in Mark if mark in cell.marks] + ([cell.grade.name] if cell.grade else [])
            )
            tests = ["" if p is None else repr(p) for p in (cell.p, cell.p_holm)]
            row = [*place, cell.n, cell.invalid, *ends(cell.mean), value, unit, low, high, *tests]
            writer.writerow([*row, marks])
    return out.getvalue()
