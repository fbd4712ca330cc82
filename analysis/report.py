# SPDX-License-Identifier: BSD-3-Clause
"""Tables that are not the paper's Tables 1 and 2: what a suite of its own measures, with figures, in every form."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from . import drawing
from .render import new_grid
from .statistics import Interval, mean_interval
from .summaries import EXTRA, SUMMARY, SummaryError, lab_words, run_from_summary, warnings_note

NO_VALUE = "-"
LARGE = 10_000
NAMES = 2  # columns that say what a row is of: where all rows have the same, a terminal has it once, above them
INTERVALS = "±: half width of the 95 % confidence interval; a single run has none."


@dataclass(frozen=True)
class Report:
    """rows: for people; records: of the CSV, in full precision. name: of its files.

    figures: by name, what draws them.
    """

    name: str
    title: str
    notes: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    heads: tuple[str, ...]
    records: tuple[tuple[str, ...], ...]
    emulated: str = ""  # as Run.emulated
    figures: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


def size_text(size: int) -> str:
    """The size of a block (bytes) as fio writes it."""
    return f"{size >> 20}m" if size % (1 << 20) == 0 else f"{size >> 10}k"


ALL_HOSTS = "*"


def summaries_of(directory: Path, suite: str, host: str = ALL_HOSTS) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Directory and summary of every finished run of a suite in a campaign. Raises SummaryError."""
    for done in sorted(directory.glob(f"{host}/*/{suite}/*/*/*/DONE")):
        if done.parent.name in EXTRA:
            continue
        file = done.with_name(SUMMARY)
        try:
            summary = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue  # it is being made again, or lost_of() names it
        except (OSError, ValueError) as error:
            raise SummaryError(f"{file}: cannot be read: {error}") from None
        run_from_summary(summary, str(file))  # has it what all summaries have?
        yield done.parent, summary


@contextmanager
def of_suite(suite: str, file: Path) -> Iterator[None]:
    """Raises SummaryError, which names the file, where a run has left something else in it than its suite's own."""
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        said = f"not of a run of suite {suite}: {type(error).__name__} {error}"
        remedy = "remove DONE beside it, and repeat the run with: userblk resume"
        raise SummaryError(f"{file}: {said}; {remedy}") from None


def place(summaries: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """Where and when the runs were made: for the title, and as notes. summaries is not empty."""

    def each(name: str) -> str:
        return ", ".join(sorted({str(summary.get(name, "")) for summary in summaries}))

    emulated = max(lab_words(summary) for summary in summaries)
    notes = [f"campaign {each('campaign')}; profile {each('profile')}; Linux {each('kernel')}"]
    if bad := sum(not summary["valid"] for summary in summaries):
        notes.append(f"{bad} of {len(summaries)} runs are invalid and were left out.")
    if warned := warnings_note((summary["warnings"] for summary in summaries if summary["valid"]), len(summaries)):
        notes.append(warned)
    return f"host {each('host')}" + (f", {emulated}" if emulated else ""), tuple(notes)


def interval_of(values: Sequence[float]) -> Interval | None:
    return mean_interval(values) if values else None


def interval_text(interval: Interval | None, decimals: int) -> str:
    """The mean, and the half width of its interval if there is one; from LARGE on without decimals."""
    if interval is None:
        return NO_VALUE
    half = interval.half
    if max(abs(interval.value), half or 0.0) >= LARGE:
        decimals = 0
    return f"{interval.value:.{decimals}f}" + ("" if half is None else f" ±{half:.{decimals}f}")


def some_text(values: Sequence[float], runs: int, decimals: int) -> str:
    """The mean of the runs that have a value, and how many have none."""
    missing = f" (not in {runs - len(values)})" if 0 < len(values) < runs else ""
    return interval_text(interval_of(values), decimals) + missing


def interval_fields(interval: Interval | None) -> tuple[str, str, str]:
    """Value and both ends for a CSV, empty where there is none."""
    if interval is None:
        return "", "", ""
    low, high = ("" if end is None else repr(end) for end in (interval.low, interval.high))
    return repr(interval.value), low, high


def terminal(report: Report) -> RenderableType:
    """Nothing is cut off: what does not fit into its column goes on in the next line."""
    same = [n for n in range(NAMES) if len({row[n] for row in report.rows}) == 1]
    shown = [n for n in range(len(report.columns)) if n not in same]
    grid = new_grid()
    for number in shown:
        words = number < NAMES or all(row[number][:1].isalpha() for row in report.rows)
        grid.add_column(report.columns[number], justify="left" if words else "right", overflow="fold")
    for row in report.rows:
        grid.add_row(*(row[number] for number in shown))
    title = Text(report.title, style="bold reverse" if report.emulated else "bold")
    above = [Text(", ".join(f"{report.columns[n]}: {report.rows[0][n]}" for n in same))] if same else []
    return Group(title, *above, "", grid, "", Text("\n".join(report.notes)))


def markdown(reports: Sequence[Report]) -> str:
    lines: list[str] = []
    for report in reports:
        lines += [f"### {report.title}", "", "| " + " | ".join(report.columns) + " |"]
        lines.append("|---|---|" + "---:|" * (len(report.columns) - 2))
        lines += ["| " + " | ".join(row) + " |" for row in report.rows]
        lines += ["", *(f"- {note}" for note in report.notes)]
        lines += [f"\n![{name}]({name}.png)" for name in report.figures]
        lines.append("")
    return "\n".join(lines)


def as_csv(report: Report) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(report.heads)
    writer.writerows(report.records)
    return out.getvalue()


def files_of(reports: Sequence[Report]) -> dict[str, str]:
    """Name and text of the files that reports leave in a campaign's directory, but for figures."""
    files = {f"{report.name}.md": markdown([report]) for report in reports}
    return files | {f"{report.name}.csv": as_csv(report) for report in reports}


def draw(reports: Sequence[Report], directory: Path) -> list[str]:
    """Make all figures, as PNG and SVG; returns the names of the files."""
    names = []
    for report in reports:
        for name, figure in report.figures.items():
            paths = [directory / f"{name}.{kind}" for kind in drawing.METADATA]
            drawing.write(figure, paths)
            names += [path.name for path in paths]
    return names
