# SPDX-License-Identifier: BSD-3-Clause
"""bundle: a campaign as the artefact of a paper: what was measured, what was made of it, and how to make it again."""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from userblk.analysis import export, paper, paper_claims, papers
from userblk.analysis.compare import environments
from userblk.analysis.report import Report
from userblk.analysis.suites import reports_of
from userblk.analysis.summaries import Campaign, lab_banner, notes_of
from userblk.analysis.table import NATIVE, Table
from userblk.analysis.tabulate import make_tables

from ..engines import replay
from ..machine import paths
from ..model.tables import ConfigError
from ..running import archive
from .common import Add, add_json, add_results, find_campaign, how_to_resume, optional_packages, print_json
from .report import campaign_of
from .results import tables_of, write_reports, write_tables

FACTS = ("kernel", "distribution", "cpu_model", "cpus", "memory_bytes", "governor", "turbo", "smt", "virtual")


def _machine(environment: dict[str, Any]) -> list[str]:
    lines = [f"- {name}: {environment[name]}" for name in FACTS if environment.get(name) not in (None, "")]
    devices = environment.get("devices", {})
    lines += [f"- device {name}: {one.get('model', 'unknown')}" for name, one in sorted(devices.items())]
    packages = environment.get("packages", {})
    return [*lines, "- packages: " + ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))]


def readme(
    campaign: Campaign,
    tables: Sequence[Table],
    reports: Sequence[Report],
    besides: Sequence[paper.PaperComparison],
) -> str:
    """What is in the artefact, which command makes each part of it, and what it says of each of the paper's claims."""
    name, version = campaign.name, campaign.asked.get("userblk", {})
    held = ["environment", "summary"]
    if any((campaign.directory / run.directory / "commands.json").is_file() for run in campaign.runs):
        held = ["raw output", "commands", *held]
    lines = [f"# {name}", ""]
    if banner := lab_banner(max((run.emulated for run in campaign.runs), default="")):
        lines += [f"**{banner}**", ""]
    commit = f", commit {version['commit']}" if version.get("commit") else ""
    commit += " (modified)" * bool(version.get("modified"))
    lines += [
        f"Measured with userblk {version.get('version', 'of unknown version')}{commit}, begun {campaign.created}, seed"
        f" {campaign.seed}: {len(campaign.runs)} runs, {sum(run.valid for run in campaign.runs)} of them valid.",
        "",
        *(text for line in notes_of(campaign.directory) for text in (line, "")),
        f"Unpack it with `userblk import FILE`; it becomes the campaign {name} below `results`. Without userblk: it is"
        " a tar file.",
        "",
        "| part | made by |",
        "|---|---|",
        f"| `*/*/*/*/*/*/`: {', '.join(held)} of each run | `{_command(campaign)}` |",
        f"| `report/`: the report with its figures | `userblk report {name}` |",
        f"| `export.json`: all numbers | `userblk export {name} --format json` |",
    ]
    table = f"`userblk table {name} --format"
    if tables:
        lines.append(
            f"| `tables/table.md`, `table.csv`, `table-long.csv` | {table} markdown --ci`, `csv`, `csv-long` |"
        )
    for one in reports:
        lines.append(f"| `tables/{one.name}.md`, `{one.name}.csv` and its figures | {table} markdown`, `csv` |")
    if any((campaign.directory / run.directory / replay.FILE).is_file() for run in campaign.runs):
        again = (
            f"`fio {replay.FILE}` in its directory; its first lines tell the state of the device before it. A run that"
            f" writes OVERWRITES the device that you name: `DEVICE=... fio {replay.FILE}`; if the file of an older"
            " version names one itself, that one"
        )
        lines.append(f"| a repetition of one run of fio, without userblk | {again} |")
    lines.append("")
    titles = [*(one.title for one in tables), *(one.title for one in reports)]
    for machine, environment in environments(campaign).items():
        lines += [f"## Machine {machine}", "", *_machine(environment), ""]
    lines += ["## Tables", "", *(f"- {title}" for title in titles), ""]
    for beside in besides:
        lines += [
            f"## The claims of {beside.paper.source}: `userblk compare {name} {beside.paper.name}`",
            "",
            *(f"- {line}" for line in beside.summary),
            "",
            "| claim | section | here | cells | is measured by `userblk run` with |",
            "|---|---|---|---|---|",
        ]
        for ours, _ in beside.claims:
            cells = [ours.claim.text, ours.claim.section, ours.verdict.value, ours.counted]
            lines.append(f"| {' | '.join(cells)} | {'; '.join(_options(beside.paper, ours.claim))} |")
        lines.append("")
    return "\n".join(lines) + "\n"


def _options(whole: papers.Paper, claim: papers.Claim) -> Iterator[str]:
    """What userblk run measures the cells of a claim with, for each table of the paper."""
    rows = {number: table.rows for number, table in whole.tables.items()}
    used = paper_claims.cells_of(claim, rows)
    for number in sorted({table for table, _, _ in used}):
        systems = {system for table, _, system in used if table == number} - {NATIVE}
        needed = {workload for table, workload, _ in used if table == number}
        listed = list(dict.fromkeys(workload for _, workload in rows[number]))
        options = [f"--suite {whole.suites[number][0]}", f"--systems {','.join([NATIVE, *sorted(systems)])}"]
        if needed != set(listed):
            options.append(f"--workloads {','.join(name for name in listed if name in needed)}")
        yield f"`{' '.join(options)}`"


def _command(campaign: Campaign) -> str:
    command = campaign.asked.get("command", [])
    return shlex.join(["userblk", *map(str, command[1:])]) if command else "userblk run"


def bundle_command(args: argparse.Namespace) -> int:
    with optional_packages():
        from userblk.analysis.page import write_report  # what draws figures takes long to load

    directory = find_campaign(args.campaign, args.results)
    campaign = campaign_of(args.campaign, args.results)
    tables, reports = tables_of(directory), reports_of(directory)
    by_host = make_tables(campaign.runs, campaign.seed, campaign.choices, campaign.block_choices)
    if not tables and not reports:
        raise ConfigError(f"{directory}: no run is done yet. {how_to_resume(directory)}")
    file = args.output or Path(f"{directory.name}-artefact{archive.SUFFIXES[0]}")
    with tempfile.TemporaryDirectory(prefix="userblk-") as place:
        made = Path(place)
        (made / "tables").mkdir()
        if tables:
            write_tables(tables, made / "tables")
        write_reports(reports, made / "tables")
        write_report(campaign, made / "report", paths.CONFIGS)
        (made / "export.json").write_text(export.json_text(campaign, by_host))
        besides = paper.compare_with_papers(campaign, by_host, paths.CONFIGS)
        (made / "README.md").write_text(readme(campaign, tables, reports, besides))
        for beside in besides:
            (made / f"tables/{beside.paper.name}.csv").write_text(paper.as_csv(beside))
        archive.export(directory, file, beside=made)
    if args.json:
        print_json({"campaign": directory.name, "file": str(file.absolute()), "bytes": os.path.getsize(file)})
    else:
        print(f"{file}: {os.path.getsize(file)} bytes")
    return 0


def add_commands(add: Add) -> None:
    sub = add("bundle", "pack a campaign as the artefact of a paper", bundle_command)
    sub.add_argument("campaign", metavar="CAMPAIGN", help="directory of the campaign, or its name below --results")
    sub.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write to FILE, which ends in .tar.zst or .tar.gz (default: CAMPAIGN-artefact.tar.zst)",
    )
    add_json(sub)
    add_results(sub)
