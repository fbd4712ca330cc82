# SPDX-License-Identifier: BSD-3-Clause
"""compare, history, report: what a campaign says beside others, beside the paper, and as a whole."""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from userblk.analysis import agreement, compare, drawing, history, paper, report
from userblk.analysis.papers import paper_names
from userblk.analysis.summaries import Campaign, changes_of_all, read_campaign
from userblk.analysis.tabulate import make_tables

from ..machine import paths
from ..model.tables import ConfigError
from .common import (
    Add,
    add_json,
    add_results,
    find_campaign,
    how_to_resume,
    optional_packages,
    print_json,
    say,
)

GATE_CLOSED = 3  # exit code
FIGURES = (".png", ".svg")


def campaign_of(name: str, results: Path, papers: Sequence[str] = ()) -> Campaign:
    """A campaign with at least one finished run. papers: as of find_campaign(). Raises ConfigError, SummaryError."""
    campaign = read_campaign(find_campaign(name, results, papers))
    if not campaign.runs:
        raise ConfigError(f"{campaign.directory}: no run is done yet. {how_to_resume(campaign.directory)}")
    return campaign


def compare_command(args: argparse.Namespace) -> int:
    papers = (paper.ANY, *paper_names(paths.CONFIGS))
    names, second = args.campaigns, args.second
    if wrong := [name for name in names if name in papers]:
        raise ConfigError(f"campaign={wrong[0]}: name the paper last: userblk compare CAMPAIGN {wrong[0]}")
    with_paper = second in papers
    if len(names) > 1 and not with_paper:
        raise ConfigError(f"campaign={second}: more than two campaigns are compared with a paper only; name it last")
    campaigns = [campaign_of(name, args.results) for name in names]
    first = campaigns[0]
    shown: RenderableType
    if args.fail_over is not None and (with_paper or not 0 <= args.fail_over < math.inf):
        remedy = "compare two campaigns" if with_paper else "give a percentage from 0 on"
        raise ConfigError(f"fail-over={args.fail_over:g}: is not a valid limit; {remedy}")
    worse: list[compare.Line] = []
    if with_paper:
        tables = make_tables([run for one in campaigns for run in one.runs])
        beside = paper.compare_with_paper(campaigns, tables, paper.paper_for(first, paths.CONFIGS, second))
        found = agreement.agreements(beside.cells)
        value = paper.as_json(beside) | {"agreement": agreement.as_json(found)}
        text, shown = paper.as_csv(beside), Group(paper.terminal(beside, Console()), agreement.terminal(found))
    else:
        campaigns.append(campaign_of(second, args.results, papers))
        both = compare.compare(*campaigns)
        value, text, shown = compare.as_json(both), compare.as_csv(both), compare.terminal(both, args.all)
        if args.fail_over is not None:
            worse = compare.regressions(both, args.fail_over)
            value |= {"gate": compare.gate_json(worse, args.fail_over, both)}
            shown = Group(shown, "", compare.gate_text(worse, args.fail_over, both))
    changes = changes_of_all(campaigns)
    if args.json:
        print_json(value | {"changes": list(changes)})
    elif args.csv:
        sys.stdout.write(text)
    else:
        Console().print(*changes, shown, sep="\n", markup=False)
    return GATE_CLOSED if worse else 0


def history_command(args: argparse.Namespace) -> int:
    if args.output and args.output.suffix not in FIGURES:
        raise ConfigError(f"output={args.output}: name a file that ends in {' or '.join(FIGURES)}")
    campaigns = [campaign_of(name, args.results) for name in args.campaigns]
    one = history.history(campaigns, history.SHOWN_METRICS[args.metric], args.device, args.workload)
    if args.json:
        print_json(list(csv.DictReader(io.StringIO(report.as_csv(one)))))
    elif args.csv:
        sys.stdout.write(report.as_csv(one))
    else:
        Console().print(report.terminal(one))
    if args.output:
        (draw,) = one.figures.values()
        try:
            with optional_packages():
                drawing.write(draw, [args.output])
        except OSError as error:
            raise ConfigError(f"output={args.output}: {error.strerror}; name a file that can be written") from None
    return 0


def report_command(args: argparse.Namespace) -> int:
    with optional_packages():
        from userblk.analysis.page import write_report  # what draws figures takes long to load

    campaign = campaign_of(args.campaign, args.results)
    output = args.output or campaign.directory / "report"
    try:
        written = write_report(campaign, output, paths.CONFIGS)
    except OSError as error:
        raise ConfigError(f"output={output}: {error.strerror}; name a directory that can be written") from None
    if args.json:
        print_json({"written": [str(path) for path in written]})
    else:
        say(f"Written: {', '.join(str(path) for path in written)}")
    return 0


def add_commands(add: Add) -> None:
    sub = add("compare", "show where two campaigns, or a campaign and a paper, differ", compare_command)
    sub.add_argument(
        "campaigns",
        metavar="CAMPAIGN",
        nargs="+",
        help="directory of a campaign, or its name below --results; before a paper also several, of different"
        " suites, workloads or devices",
    )
    sub.add_argument(
        "second",
        metavar="OTHER",
        help=f"another campaign, or a paper (userblk papers lists them); `{paper.ANY}`: the paper that has this suite",
    )
    sub.add_argument("--all", action="store_true", help="also show comparisons without a significant difference")
    sub.add_argument("--csv", action="store_true", help="print a line for each comparison")
    sub.add_argument(
        "--fail-over",
        type=float,
        metavar="PERCENT",
        help="exit with 3 if the second campaign lacks a cell, has fewer than two valid runs of one, or is"
        " significantly worse in one by more than PERCENT",
    )
    add_json(sub)
    add_results(sub)
    sub = add(
        "history",
        "show how the result of one cell, or the mean of all cells, changed over several campaigns",
        history_command,
    )
    sub.add_argument(
        "campaigns",
        nargs="+",
        metavar="CAMPAIGN",
        help="directories of campaigns, or their names below --results, in any order",
    )
    sub.add_argument("--device", metavar="DEVICE", help="show this device only, for example nvme")
    sub.add_argument("--workload", metavar="WORKLOAD", help="show this workload only, for example rand-read-1th-4k")
    sub.add_argument("--metric", choices=history.SHOWN_METRICS, default="throughput", help="default: %(default)s")
    sub.add_argument("--csv", action="store_true", help="print a line for each campaign and system")
    sub.add_argument("--output", type=Path, metavar="FILE", help="also draw it into FILE, which ends in .png or .svg")
    add_json(sub)
    add_results(sub)
    sub = add("report", "write a campaign's report: an HTML page, and its figures as PNG and SVG", report_command)
    sub.add_argument("campaign", metavar="CAMPAIGN", help="directory of a campaign, or its name below --results")
    sub.add_argument("--output", type=Path, metavar="DIR", help="directory to write it to (default: CAMPAIGN/report)")
    add_json(sub)
    add_results(sub)
