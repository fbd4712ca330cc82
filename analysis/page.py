# SPDX-License-Identifier: BSD-3-Clause
"""The report of a campaign: one HTML page that needs nothing else, and every figure as PNG and SVG.

The page holds the tables and what was found as they are; figures of single workloads are drawn from data in it when
they are asked for, so that thousands of runs open as fast as ten. Nothing in it depends on when or where it was made.
"""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userblk.harness.observing.histogram import distribution, supported

from . import figures, flame
from .agreement import Agreement, agreements
from .compare import environment_rows, environments
from .figures import Row, SystemRow
from .html import TableView, embedded, table_view, templates
from .palette import heat, look
from .paper import PaperComparison, classes, compare_with_papers
from .paper_cells import PaperCell
from .paper_claims import ClaimResult, ClaimVerdict
from .papers import Paper
from .raw import CellDetails, Key, cell_details
from .render import signed, unit_text
from .report import Report, draw
from .statistics import Interval
from .suites import reports_of
from .summaries import Campaign, Run, SummaryError, campaign_warnings, lab_banner, lost_of, missing_of
from .table import CONTROL, DEVICES, METRICS, NATIVE, SYSTEMS, Mark, Metric, Table, control
from .tabulate import make_tables, tail_table

PAGE = "report.html"
FIGURES = "figures"
LIST = "figures.txt"  # the names of those that are the report's
LISTED = 200  # invalid runs, kinds of warnings and problems that are listed; the rest is counted
SHOWN_PERCENTILES = (50.0, 90.0, 99.0, 99.9)
# The page's axis of latency: closer towards 100 %, where the tail is.
PAGE_PERCENTS = tuple(100 * (1 - 10 ** (-step / 12)) for step in range(49))
UNITS = {"us": "\N{MICRO SIGN}s"}
MAP_CELL = 16  # px of a square of the heat map
MAP_GROUP = 68  # px that a metric's title takes
MAP_HEAD, MAP_LETTER = 40, 5  # px above the labels of columns, and for each of their letters, which slant


# ---- what the page shows --------------------------------------------------------------


@dataclass(frozen=True)
class Square:
    """One square of a heat map."""

    x: int
    y: int
    fill: str
    hint: str
    name: str


@dataclass(frozen=True)
class HeatMap:
    """rows: label and place; columns: label and place; in px. top: where the squares begin, below all labels."""

    title: str
    width: int
    height: int
    top: int
    square: int  # width of one
    squares: tuple[Square, ...]
    rows: tuple[tuple[str, int], ...]
    columns: tuple[tuple[str, int], ...]
    groups: tuple[tuple[str, int], ...]


def heat_maps(table: Table, names: Mapping[tuple[str, str], str]) -> list[HeatMap]:
    """A map for each device: a row for each workload, a column for each metric and system; none without native."""
    systems = [system for system in table.systems if system != NATIVE]
    if not systems or not table.base:
        return []
    left, gap = 130, 10
    longest = max(len(SYSTEMS.get(name, name)) for name in systems)
    top = MAP_HEAD + MAP_LETTER * longest
    wide = max(MAP_CELL, -(-MAP_GROUP // len(systems)))
    maps = []
    for device in dict.fromkeys(device for device, _ in table.rows):
        squares: list[Square] = []
        columns: list[tuple[str, int]] = []
        groups: list[tuple[str, int]] = []
        workloads = [workload for one, workload in table.rows if one == device]
        for at, metric in enumerate(METRICS):
            begin = left + at * (len(systems) * wide + gap)
            groups.append((metric.title, begin))
            columns += [(SYSTEMS.get(name, name), begin + i * wide + wide // 2 - 4) for i, name in enumerate(systems)]
            for y, workload in enumerate(workloads):
                for x, system in enumerate(systems):
                    difference = table.cell(device, workload, system, metric).difference
                    if difference is None:
                        continue
                    unit = unit_text(table, metric, system)
                    change = f"{metric.title} {signed(difference.value, 1)} {unit}"
                    hint = f"{workload}, {SYSTEMS.get(system, system)}: {change}"
                    fill, _ = heat(metric, difference.value)
                    place = begin + x * wide, top + y * MAP_CELL
                    squares.append(Square(*place, fill, hint, names[device, workload]))
        rows = [(workload, top + y * MAP_CELL) for y, workload in enumerate(workloads)]
        title = f"{table.label}, {DEVICES.get(device, device)}"
        width = left + len(METRICS) * (len(systems) * wide + gap) + 2 * MAP_CELL  # a column's name hangs over
        size = width, top + len(workloads) * MAP_CELL + 4
        maps.append(HeatMap(title, *size, top, wide - 1, tuple(squares), tuple(rows), tuple(columns), tuple(groups)))
    return maps


def _short(value: float | None) -> float | None:
    """Four digits: what a figure can show."""
    return None if value is None else float(f"{value:.4g}")


def _interval(interval: Interval | None) -> list[float | None] | None:
    if interval is None:
        return None
    return [_short(interval.value), _short(interval.low), _short(interval.high)]


def _series(details: CellDetails, several: bool) -> dict[str, Any]:
    out: dict[str, Any] = {"step": details.step_s}
    for name, band in (("kops", details.kops), ("us", details.latency_us)):
        out[name] = [_short(value) for value in band.mean]
        if several:
            out[f"{name}_low"] = [_short(value) for value in band.low]
            out[f"{name}_high"] = [_short(value) for value in band.high]
    found = distribution(details.bins, PAGE_PERCENTS)
    out["spread"] = [_short(None if value is None else value / 1e3) for value in found]
    shown = [supported(details.bins, percent) for percent in SHOWN_PERCENTILES]
    out["percentiles"] = [_short(None if value is None else value / 1e3) for value in shown]
    return out


# ---- collected --------------------------------------------------------------------------


def row_names(tables: Sequence[Table]) -> dict[tuple[int, str, str], str]:
    """A name for every row of every table, by the table's place in the list; they are those of files, too."""
    several = len({table.host for table in tables}) > 1
    return {
        (at, device, workload): "-".join([*([table.host] if several else []), device, table.suite, workload])
        for at, table in enumerate(tables)
        for device, workload in table.rows
    }


def _by_cell(runs: Iterable[Run]) -> dict[Key, list[Run]]:
    grouped: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        grouped[run.host, run.suite, run.device, run.workload, run.system].append(run)
    return grouped


def _figure_rows(campaign: Campaign, tables: Sequence[Table], cells: Mapping[Key, CellDetails]) -> list[Row]:
    names = row_names(tables)
    valid = _by_cell(run for run in campaign.runs if run.valid)
    rows = []
    for at, table in enumerate(tables):
        metric = table.metrics[0]
        place = f"{'file system' if table.number == 2 else 'block device'} workload, host {table.host}"
        for device, workload in table.rows:
            systems = []
            for system in table.systems:
                key = (table.host, table.suite, device, workload, system)
                runs = valid.get(key, ())
                sample = tuple(run.metrics[metric.id] for run in runs if metric.id in run.metrics)
                if sample:
                    mean = table.cell(device, workload, system, metric).mean
                    systems.append(SystemRow(system, mean, sample, cells.get(key)))
            if systems:
                name = names[at, device, workload]
                rows.append(Row(name, place, device, workload, table.emulated, tuple(systems), metric))
    return rows


def _page_row(table: Table, row: Row, metrics: Sequence[Metric]) -> dict[str, Any]:
    """metrics: all of the page, among which the row's are named by their places."""
    systems = []
    for one in row.systems:
        cells = [table.cell(row.device, row.workload, one.system, metric) for metric in table.metrics]
        value: dict[str, Any] = {"id": one.system, "n": len(one.sample)}
        value["means"] = [_interval(cell.mean) for cell in cells]
        value["differences"] = [_interval(cell.difference) for cell in cells]
        if one.details is not None:
            value |= _series(one.details, len(one.sample) > 1)
        systems.append(value)
    title = f"{DEVICES.get(row.device, row.device)} {row.workload}, {row.place}"
    shown = [metrics.index(metric) for metric in table.metrics]
    return {"name": row.name, "title": title, "metrics": shown, "systems": systems}


def _limited(counted: Mapping[str, int]) -> list[tuple[str, int]]:
    """The most frequent first; what is too much is counted in a last line."""
    lines = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    if len(lines) <= LISTED:
        return lines
    return lines[:LISTED] + [(f"... and {len(lines) - LISTED} more", sum(n for _, n in lines[LISTED:]))]


def _warnings(campaign: Campaign) -> list[tuple[str, int, str]]:
    """Kind, number of runs, an example."""
    kinds: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for run in campaign.runs:
        for warning in run.warnings:
            kind = warning.split(":", 1)[0]
            kinds[kind] += 1
            examples.setdefault(kind, f"{warning} ({run.directory})")
    return [(kind, count, examples.get(kind, "")) for kind, count in _limited(kinds)]


def _invalid(campaign: Campaign) -> list[tuple[str, str, str]]:
    """Cell, which of its runs, why."""
    lines = []
    for key, runs in sorted(_by_cell(run for run in campaign.runs if not run.valid).items()):
        reasons: dict[str, list[int]] = defaultdict(list)
        for run in runs:
            reasons["; ".join(run.invalid) or "no reason is recorded"].append(run.repetition)
        for reason, repetitions in sorted(reasons.items()):
            host, suite, device, workload, system = key
            numbers = ", ".join(map(str, sorted(repetitions)))
            place = f"{DEVICES.get(device, device)} {workload} {SYSTEMS.get(system, system)} ({suite}, {host})"
            lines.append((place, numbers, reason))
    return lines[:LISTED] + [(f"... and {len(lines) - LISTED} more", "", "")] * (len(lines) > LISTED)


def _steadiness(campaign: Campaign) -> str:
    """A sentence on the warm-up verdicts in the summaries; "" where none has one."""
    judged = [run for run in campaign.runs if run.valid and run.steady is not None]
    if not judged:
        return ""
    unsteady = [run for run in judged if not run.steady]
    return f"{len(judged) - len(unsteady)} of {len(judged)} runs that are long enough to judge were steady once warm."


def _summary(campaign: Campaign, tables: Sequence[Table], besides: Sequence[PaperComparison]) -> list[str]:
    valid = sum(run.valid for run in campaign.runs)
    lines = [
        f"{len(campaign.runs):,} runs, {valid:,} of them valid.",
        *missing_of(campaign.directory),
        *lost_of(campaign.directory),
    ]
    if not tables:
        return lines
    cells = [cell for table in tables for key, cell in table.cells.items() if key[2] not in (NATIVE, CONTROL)]
    tested = [cell for cell in cells if cell.p_holm is not None]
    means = [
        cell
        for table in tables
        for key, cell in table.cells.items()
        if key[3] in {metric.id for metric in table.metrics}
    ]
    wide, total = sum(Mark.WIDE in cell.marks for cell in means), sum(cell.n > 1 for cell in means)
    based = any(table.base for table in tables)
    if tested:
        shown = sum(cell.significant for cell in tested)
        lines.append(
            f"{shown:,} of {len(tested):,} differences to native are significant (Welch's test at 5 %, Holm's"
            " correction over each table)."
        )
    elif based:
        nothing = "no tests" if total else "no intervals and no tests"
        lines.append(f"No cell has two runs of a system and of native: {nothing}.")
    else:
        nothing = "no tests" if total else "only single runs: no tests and no intervals"
        lines.append(f"There is no native to compare with, and {nothing}: all numbers are absolute.")
    if total:
        lines.append(f"{wide:,} of {total:,} means have intervals wider than the paper's limits.")
    if steady := _steadiness(campaign):
        lines.append(steady)
    if based:
        alarm = control(tables)
        lines.append(alarm.text if alarm else "The rate of false alarms was not measured: there was no A/A control.")
    return lines + [line for beside in besides for line in beside.summary]


def _environment(campaign: Campaign) -> list[tuple[str, list[tuple[str, str]]]]:
    return [
        (host, sorted(environment_rows(environment).items())) for host, environment in environments(campaign).items()
    ]


def _facts(campaign: Campaign) -> list[tuple[str, str]]:
    runs = campaign.runs

    def each(name: str) -> str:
        return ", ".join(sorted({str(getattr(run, name)) for run in runs}))

    systems = [SYSTEMS.get(str(name), str(name)) for name in campaign.asked.get("systems", [])]
    return [
        ("Campaign", f"{campaign.name}, begun {campaign.created}"),
        ("Suite", str(campaign.asked.get("suite", each("suite")))),
        ("Systems", ", ".join(systems)),
        ("Profile", each("profile")),
        ("Host", each("host")),
        ("Kernel", each("kernel")),
        ("Seed", str(campaign.seed)),
    ]


@dataclass(frozen=True)
class BesideView:
    """Comparison with one paper. cells: those that are measured; scatters: the names of figures."""

    paper: Paper
    claims: Sequence[tuple[ClaimResult, ClaimResult]]
    agreements: Sequence[Agreement]
    scatters: Sequence[str]
    classes: Sequence[TableView]
    cells: Sequence[PaperCell]


def _beside(beside: PaperComparison, tables: Sequence[Table]) -> BesideView:
    several = len({one.host for one in tables}) > 1
    return BesideView(
        beside.paper,
        beside.claims,
        agreements(beside.cells),
        [f"{figures.table_name(t, several)}-paper" for t in tables if figures.beside_paper(beside.cells, t)],
        [table_view(table) for table in classes(beside)],
        [cell for cell in beside.cells if cell.shape is not None],
    )


def render(
    campaign: Campaign,
    tables: Sequence[Table],
    rows: Sequence[Row],
    problems: Sequence[str],
    besides: Sequence[PaperComparison],
    others: Sequence[Report] = (),
    flames: Sequence[flame.Cell] = (),
) -> str:
    """
    The page. rows: of all tables in order; problems: raw files that could not be read; others: of other suites; flames:
    what perf saw.
    """
    names = row_names(tables)
    places: dict[str, Table] = {name: tables[at] for (at, _, _), name in names.items()}
    views, maps = [], []
    for at, table in enumerate(tables):
        own = {(device, workload): name for (one, device, workload), name in names.items() if one == at}
        views.append(table_view(table, own))
        maps += heat_maps(table, own)
    systems = list(dict.fromkeys(system for table in tables for system in table.systems))
    metrics = list(dict.fromkeys(metric for table in tables for metric in table.metrics))
    data = {
        "metrics": [
            {"title": metric.title, "unit": UNITS.get(metric.unit, metric.unit), "points": metric.points}
            for metric in metrics
        ],
        "percents": [_short(percent) for percent in PAGE_PERCENTS],
        "shown": SHOWN_PERCENTILES,
        "systems": {
            name: {"title": SYSTEMS.get(name, name), "colour": style.colour, "dash": style.dash}
            for name in systems
            if (style := look(name, systems))
        },
        "rows": [_page_row(places[row.name], row, metrics) for row in rows],
    }
    verdicts = ClaimVerdict
    page: str = (
        templates()
        .get_template("report.html")
        .render(
            title=f"userblk: {campaign.name}",
            banner=lab_banner(max([table.emulated for table in tables] + [one.emulated for one in others])),
            facts=_facts(campaign),
            summary=_summary(campaign, tables, besides),
            views=views,
            others=others,
            flames=flames,
            tail_views=[table_view(tail) for table in tables if (tail := tail_table(table))],
            maps=maps,
            besides=[_beside(beside, tables) for beside in besides],
            holds=verdicts.HOLDS,
            fails=verdicts.FAILS,
            devices=DEVICES,
            system_names=SYSTEMS,
            environment=_environment(campaign),
            campaign_warnings=campaign_warnings(campaign.directory),
            warnings=_warnings(campaign),
            invalid=_invalid(campaign),
            problems=_limited(Counter(problems)),
            choices=campaign.block_choices + campaign.choices,
            figures=FIGURES,
            data=embedded(data),
        )
    )
    return page


def write_report(campaign: Campaign, output: Path, configs: Path) -> list[Path]:
    """The page and the figures; returns the page and the figures' directory. Raises SummaryError, OSError."""
    tables = make_tables(campaign.runs, campaign.seed, campaign.choices, campaign.block_choices)
    others = reports_of(campaign.directory)
    if not tables and not others:
        raise SummaryError(f"{campaign.directory}: has no run that a table holds, so there is nothing to report")
    cells, problems = cell_details(campaign)
    rows = _figure_rows(campaign, tables, cells)
    besides = compare_with_papers(campaign, tables, configs)
    words = max(run.emulated for run in campaign.runs)
    page, drawn = output / PAGE, output / f"{FIGURES}.new"
    temporary = page.with_name(f"{PAGE}.new")
    output.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(drawn, ignore_errors=True)  # of one that was killed
    try:
        flames = flame.write_flames(campaign.directory, drawn, words)
        figures.write_figures(tables, rows, [cell for one in besides for cell in one.cells], drawn)
        draw(others, drawn)
        temporary.write_text(render(campaign, tables, rows, problems, besides, others, flames), encoding="utf-8")
        _replace_figures(drawn, output)
        temporary.rename(page)
    finally:
        temporary.unlink(missing_ok=True)
        shutil.rmtree(drawn, ignore_errors=True)
    return [page, output / FIGURES]


def _replace_figures(drawn: Path, output: Path) -> None:
    """Put all that was drawn in the place of what an earlier report listed, and leave the files of others alone."""
    names = sorted(str(path.relative_to(drawn)) for path in drawn.rglob("*") if path.is_file())
    listed = output / LIST
    former = listed.read_text(encoding="utf-8").splitlines() if listed.exists() else []
    # Until all is done, both: an interrupted report leaves nothing that no later one removes.
    listed.write_text("".join(f"{name}\n" for name in sorted({*former, *names})), encoding="utf-8")
    for name in names:
        target = output / FIGURES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (drawn / name).replace(target)
    for name in set(former) - set(names):
        (output / FIGURES / name).unlink(missing_ok=True)
    listed.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
