# SPDX-License-Identifier: BSD-3-Clause
"""table, status, export, import: what only reads a campaign."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from userblk.analysis import costs, export, latex, model, render, report
from userblk.analysis.paper import ANY, compare_with_paper, paper_for
from userblk.analysis.papers import Paper, load_paper, load_papers, paper_names
from userblk.analysis.report import Report
from userblk.analysis.suites import reports_of
from userblk.analysis.summaries import notes_of, read_campaign
from userblk.analysis.table import Table, graded
from userblk.analysis.tabulate import make_tables, tail_table

from ..machine import paths
from ..machine.packages import installing
from ..model.plan import EXTRA, Plan, read_plan
from ..model.tables import ConfigError
from ..running import archive, hosts, stopping
from ..running.runner import valid_summary
from .common import (
    Add,
    add_json,
    add_results,
    find_campaign,
    how_to_resume,
    optional_packages,
    print_json,
    say,
    write_file,
)

FORMATS = ("terminal", "markdown", "csv", "csv-long", "latex", "html", "json")
TYPESET = ("latex", "html")
FILES = {"table.md": "markdown", "table.csv": "csv", "table-long.csv": "csv-long"}
ARCHIVE = "archive"
EXPORTS = {ARCHIVE: archive.SUFFIXES[0], "openmetrics": ".openmetrics", "json": ".json"}  # and how their names end


def tables_of(directory: Path) -> list[Table]:
    """Raises SummaryError."""
    campaign = read_campaign(directory)
    tables = make_tables(campaign.runs, campaign.seed, campaign.choices, campaign.block_choices, joined=True)
    return [replace(table, notes=(*table.notes, *notes_of(directory))) for table in tables]


def print_reports(reports: Sequence[Report], console: Console) -> None:
    for one in reports:
        console.print("", report.terminal(one), sep="\n")


def write_reports(reports: Sequence[Report], directory: Path) -> list[str]:
    """Their files and figures; returns the names."""
    files = report.files_of(reports)
    for name, text in files.items():
        write_file(directory / name, text)
    try:
        return [*files, *report.draw(reports, directory)]
    except ImportError:
        say(f"Figures need matplotlib; run: {installing('python3-matplotlib')}")
        return list(files)


def as_json(tables: Sequence[Table], reports: Sequence[Report]) -> str:
    """What the long CSV forms hold, an object a line of them."""
    texts = [render.csv_long(tables)] * bool(tables) + [report.as_csv(one) for one in reports]
    return json.dumps([row for text in texts for row in csv.DictReader(io.StringIO(text))], indent=1) + "\n"


def formatted(tables: Sequence[Table], reports: Sequence[Report], form: str, ci: bool = False) -> str:
    """ci: with half widths of intervals, which csv-long and json always have. Raises ConfigError."""
    if form == "json":
        return as_json(tables, reports)
    if form in TYPESET:
        if not tables:
            raise ConfigError(f"format={form}: is for Tables 1 and 2 only; use markdown or csv")
        return typeset(tables, form, ci)
    if reports:
        rest = report.markdown(reports) if form == "markdown" else "\n".join(map(report.as_csv, reports))
        return (formatted(tables, [], form, ci) + "\n" if tables else "") + rest
    if form == "csv-long":
        return render.csv_long(tables)
    return render.markdown(tables, ci) if form == "markdown" else render.csv_wide(tables, ci)


def typeset(tables: Sequence[Table], form: str, ci: bool) -> str:
    if form == "latex":
        return latex.latex(tables, ci)
    with optional_packages():
        from userblk.analysis.html import html  # templates take long to load

    return html(tables, ci)


def print_tables(tables: Sequence[Table], console: Console, ci: bool = False) -> None:
    for number, table in enumerate(tables):
        console.print(*[""] * bool(number), render.terminal(table, console, ci), sep="\n")


def write_tables(tables: Sequence[Table], directory: Path) -> list[str]:
    """table.md, table.csv and table-long.csv; returns their names."""
    for name, form in FILES.items():
        write_file(directory / name, formatted(tables, [], form, ci=form == "markdown"))
    return list(FILES)


def paper_named(name: str) -> Paper | None:
    """The paper of that name; for `paper`, the one with the most numbers; None if no paper has the name."""
    if name == ANY:
        return load_papers(paths.CONFIGS)[0]
    return load_paper(name, paths.CONFIGS) if name in paper_names(paths.CONFIGS) else None


def with_classes(paper: Paper) -> Paper:
    """Raises ConfigError where it has none."""
    if not paper.grades:
        raise ConfigError(f"classes={paper.name}: the paper has no classes; name another (userblk papers)")
    return paper


def table_command(args: argparse.Namespace) -> int:
    reports: list[Report] = []
    own = paper_named(args.campaign)
    if args.model and own:
        raise ConfigError(f"model: {args.campaign} is what models are compared with; name a campaign")
    if args.tails and own:
        raise ConfigError(f"tails: {args.campaign} has no latency percentiles; name a campaign")
    if own:
        tables = [table for table in own.tables.values() if table.cells]
        if not tables:
            raise ConfigError(
                f"campaign={args.campaign}: the paper gives no numbers; compare a campaign with its claims"
            )
        if args.classes:
            grading = with_classes(load_paper(args.classes, paths.CONFIGS))
            tables = [graded(table, grading.grades, grading.source) for table in tables]
    else:
        directory = find_campaign(args.campaign, args.results, paper_names(paths.CONFIGS))
        tables, reports = tables_of(directory), reports_of(directory)
        if args.model:
            reports, tables = [model.beside_paper(read_campaign(directory), tables, paths.CONFIGS)], []
        if not tables and not reports:
            raise ConfigError(f"{directory}: no run is done yet. {how_to_resume(directory)}")
        if args.classes:
            campaign = read_campaign(directory)
            grading = with_classes(paper_for(campaign, paths.CONFIGS, args.classes))
            found = compare_with_paper([campaign], tables, grading).ours
            tables, reports = [graded(table, grading.grades, grading.source) for table in found.values()], []
            if not tables:
                raise ConfigError(
                    f"classes={args.classes}: {directory} has none of the paper's workloads on its devices"
                )
        if args.tails:
            tables = [tail for table in tables if (tail := tail_table(table))]
            if not tables:
                raise ConfigError(f"{directory}: no run has percentiles of latency; run the campaign again")
    if args.json:
        args.format = "json"
    if args.format != "terminal":
        text = formatted(tables, reports, args.format, args.ci)
    elif args.output:
        console = Console(file=open(os.devnull, "w"), record=True, width=Console().width)  # noqa: SIM115
        print_tables(tables, console, args.ci)
        print_reports(reports, console)
        text = console.export_text()
    else:
        print_tables(tables, Console(), args.ci)
        print_reports(reports, Console())
        return 0
    if args.output:
        write_file(args.output, text)
    else:
        sys.stdout.write(text)
    return 0


# ---- costs --------------------------------------------------------------------------


def costs_command(args: argparse.Namespace) -> int:
    directory = find_campaign(args.campaign, args.results)
    found = costs.load_costs(directory)
    if not found:
        raise ConfigError(f"{directory}: no costs were counted; run a campaign with --costs or --instructions")
    if args.json:
        print_json(costs.rows(found))
    elif args.csv:
        sys.stdout.write(costs.as_csv(found))
    else:
        Console().print(costs.terminal(found))
    return 0


# ---- status -------------------------------------------------------------------------


def status(directory: Path) -> dict[str, object]:
    """How far a campaign is, on all of its hosts. Raises ConfigError."""
    if not hosts.is_one(directory):
        return _status(directory, directory)
    parts = [_status(directory, file.parent) for file in sorted(directory.glob(f"{hosts.DIRECTORY}/*/plan.json"))]
    total = dict(parts[0]) | {"host": ", ".join(str(part["host"]) for part in parts), "hosts": parts}
    for name in ("runs", "valid", "invalid", "missing"):
        total[name] = sum(int(str(part[name])) for part in parts)
    return total


def _status(directory: Path, own: Path) -> dict[str, object]:
    """The status of one host. own: where its plan is."""
    plan = read_plan(own / "plan.json")
    done = [entry for entry in plan.entries if (directory / plan.directory(entry) / "DONE").exists()]
    valid = [entry for entry in done if valid_summary(directory / plan.directory(entry))]
    return {
        "campaign": plan.campaign,
        "directory": str(directory),
        "host": plan.host,
        "suite": plan.suite.name,
        "profile": plan.profile.name,
        "runs": len(plan.entries),
        "valid": len(valid),
        "invalid": len(done) - len(valid),
        "missing": len(plan.entries) - len(done),
        "repetitions": _repetitions(own, plan),
    }


def _repetitions(own: Path, plan: Plan) -> dict[str, object]:
    """How often cells are measured, and why those are not done whose intervals are wide."""
    counts = [entry.repetition for entry in plan.entries if entry.repetition not in EXTRA]
    try:
        cells = json.loads((own / stopping.FILE).read_text())["cells"]
    except (OSError, ValueError, LookupError, TypeError):
        cells = []
    wide = [cell for cell in cells if cell["width"] is not None and cell["width"] > plan.profile.half_width]
    return {"rounds": max(counts, default=0), "cells": len(cells), "wide": len(wide)}


def status_lines(found: dict[str, object]) -> str:
    text = f"{found['campaign']}  {found['suite']} {found['profile']}: {_progress(found)}"
    parts = found.get("hosts")
    if isinstance(parts, list):
        return text + "".join(f"\n  {part['host']}: {_progress(part)}" for part in parts)
    return text


def _progress(found: dict[str, object]) -> str:
    text = f"{found['valid']} of {found['runs']} runs valid, {found['invalid']} invalid, {found['missing']} missing"
    repetitions = found["repetitions"]
    if isinstance(repetitions, dict) and repetitions["cells"]:
        text += f"; {repetitions['wide']} of {repetitions['cells']} cells with wide intervals"
    return text


def status_command(args: argparse.Namespace) -> int:
    if args.campaign:
        directories = [find_campaign(args.campaign, args.results)]
    else:
        directories = sorted(path.parent.absolute() for path in args.results.glob("*/plan.json"))
    found = []
    for directory in directories:
        try:
            found.append(status(directory))
        except ConfigError as error:
            if args.campaign:
                raise
            say(str(error))  # one of an older version among others
    if args.json:
        print_json(found)
    else:
        print("\n".join(map(status_lines, found)) or f"no campaign in {args.results}")
    return 0


# ---- export and import --------------------------------------------------------------


def export_command(args: argparse.Namespace) -> int:
    directory = find_campaign(args.campaign, args.results)
    file = args.output or Path(f"{directory.name}{EXPORTS[args.format]}")
    if args.format == ARCHIVE:
        archive.export(directory, file, args.tables)
    elif args.tables:
        raise ConfigError(f"format={args.format}: holds no files; leave --tables out")
    else:
        campaign = read_campaign(directory)
        if args.format == "json":
            tables = make_tables(campaign.runs, campaign.seed, campaign.choices, campaign.block_choices)
            write_file(file, export.json_text(campaign, tables))
        else:
            write_file(file, export.openmetrics(campaign))
    if args.json:
        print_json({"campaign": directory.name, "file": str(file.absolute()), "bytes": os.path.getsize(file)})
    else:
        print(f"{file}: {os.path.getsize(file)} bytes")
    return 0


def import_command(args: argparse.Namespace) -> int:
    directory = archive.unpack(args.file, args.results)
    if args.json:
        print_json({"campaign": directory.name, "directory": str(directory.absolute())})
    else:
        print(f"{directory}: unpacked; print it with: userblk table {directory}")
    return 0


def add_commands(add: Add) -> None:
    table = add("table", "print the tables of a campaign", table_command)
    table.add_argument(
        "campaign",
        metavar="CAMPAIGN",
        help=f"directory of the campaign, or its name below --results; or a paper (see userblk papers), whose own"
        f" tables are printed; `{ANY}`: the paper with the most numbers",
    )
    table.add_argument(
        "--classes",
        metavar="PAPER",
        help="show the share of native's throughput that each system achieves, in the classes of PAPER",
    )
    table.add_argument("--format", choices=FORMATS, default="terminal", help="default: %(default)s")
    table.add_argument("--ci", action="store_true", help="show half widths of the 95 %% confidence intervals")
    table.add_argument(
        "--model",
        action="store_true",
        help="show, instead of the tables, the native throughput of a simulated campaign beside the paper's, and which"
        " cells calibrated the models",
    )
    table.add_argument(
        "--output", type=Path, metavar="FILE", help="write the tables to FILE instead of standard output"
    )
    table.add_argument(
        "--tails", action="store_true", help="show percentiles of latency, p50 to p99.99, instead of the tables"
    )
    counted = add("costs", "print the costs of operations: system calls, context switches, bytes", costs_command)
    counted.add_argument("campaign", metavar="CAMPAIGN", help="directory of the campaign, or its name below --results")
    counted.add_argument("--csv", action="store_true", help="print a line for each cell and cost")
    about = add("status", "show the progress of campaigns", status_command)
    about.add_argument(
        "campaign",
        nargs="?",
        metavar="CAMPAIGN",
        help="directory of the campaign, or its name below --results (default: all)",
    )
    pack = add("export", "pack a campaign into one file", export_command)
    pack.add_argument("campaign", metavar="CAMPAIGN", help="directory of the campaign, or its name below --results")
    pack.add_argument(
        "--format",
        choices=EXPORTS,
        default=ARCHIVE,
        help="all files, or the numbers of all runs as OpenMetrics or as one JSON object (default: %(default)s)",
    )
    pack.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write to FILE, which for an archive ends in .tar.zst or .tar.gz (default: the campaign's name)",
    )
    pack.add_argument(
        "--tables", action="store_true", help="pack only what tables and comparisons are made of, without raw files"
    )
    unpack = add("import", "unpack an exported campaign", import_command)
    unpack.add_argument("file", type=Path, metavar="FILE", help="file that userblk export wrote")
    for sub in (table, counted, about, pack, unpack):
        add_results(sub)
        add_json(sub)
