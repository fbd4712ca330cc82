# SPDX-License-Identifier: BSD-3-Clause
"""A campaign compared with a paper: numbers (paper_cells.py), claims (paper_claims.py), and how both are shown."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from . import render
from .paper_cells import PaperCell, Place, Verdict, compared, of_all_hosts, places, reasons_against
from .paper_claims import ClaimResult, ClaimVerdict, check_claim, places_of
from .papers import Paper, load_paper, papers_of
from .render import new_grid
from .summaries import SIMULATED, Campaign, SummaryError
from .table import CPU, DEVICES, METRICS, NATIVE, SYSTEMS, Grade, Table, grade_of, graded
from .tabulate import tables_of

ANY = "paper"  # on the command line: whichever has the campaign's suites
EXAMPLES = 3  # cells that are named where a claim does not hold

PLURAL: Mapping[Verdict | ClaimVerdict, str] = {
    Verdict.AGREES: "agree",
    Verdict.SAME: "have the same sign and order",
    Verdict.DIFFERS: "differ",
    Verdict.UNDECIDED: "are undecided",
    ClaimVerdict.HOLDS: "hold",
    ClaimVerdict.FAILS: "do not hold",
    ClaimVerdict.OPEN: "are undecided",
    ClaimVerdict.NOT_MEASURED: "are not measured",
}


@dataclass(frozen=True)
class PaperComparison:
    """
    claims: each with our result and that of the paper's own tables. ours: our tables of its devices, by number.
    against: why the numbers that judged a claim cannot be compared, by its id. models: how suites were simulated, if
    that differs. simulated: are numbers of the lab in virtual time?
    """

    paper: Paper
    cells: tuple[PaperCell, ...]
    claims: tuple[tuple[ClaimResult, ClaimResult], ...]
    ours: Mapping[int, Table]
    against: Mapping[str, tuple[str, ...]]
    models: Mapping[str, str] = field(default_factory=dict)
    simulated: bool = False

    @property
    def summary(self) -> list[str]:
        counts = Counter(cell.verdict for cell in self.cells)
        shapes = Counter(cell.shape for cell in self.cells if cell.shape)
        reasons = Counter(reason for cell in self.cells for reason in cell.reasons)
        measured = len(self.cells) - counts[Verdict.NOT_MEASURED]
        comparable = measured - counts[Verdict.NOT_COMPARABLE]
        missing = sorted({cell.system for cell in self.cells if cell.verdict is Verdict.NOT_MEASURED})
        compared = (Verdict.AGREES, Verdict.SAME, Verdict.DIFFERS, Verdict.UNDECIDED)
        listed, whatever = (
            ", ".join(f"{count[verdict]:,} {PLURAL[verdict]}" for verdict in compared) for count in (counts, shapes)
        )
        lines = []
        if self.cells:
            line = f"{measured:,} of the paper's {len(self.cells):,} numbers are measured, {comparable:,} comparable"
            lines.append(line + (f": {listed}." if comparable else "."))
        if comparable < measured:
            lines.append(f"Not comparable: {_counted(reasons)}.")
            lines.append(f"All measured numbers, comparable or not: {whatever}.")
        if self.models:
            listed = "; ".join(f"{suite}: {words}" for suite, words in self.models.items())
            lines.append(f"Suites differ in their model: {listed}.")
        cpus = self.paper.environment["cpus"]
        if self.simulated and any(cell.ours and cell.metric == CPU and cell.device in cpus for cell in self.cells):
            listed = ", ".join(f"{DEVICES.get(device, device)} {count}" for device, count in cpus.items())
            lines.append(f"CPU use: the lab's, divided by the number of CPUs of the paper's machine ({listed}).")
        if missing:
            lines.append(f"Not measured, at least in part: {', '.join(SYSTEMS.get(name, name) for name in missing)}.")
        if not self.claims:
            return lines
        verdicts = Counter(ours.verdict for ours, _ in self.claims)
        said = ", ".join(f"{verdicts[verdict]} {PLURAL[verdict]}" for verdict in ClaimVerdict)
        contradicted = sum(theirs.verdict is ClaimVerdict.FAILS for _, theirs in self.claims)
        own = f" ({contradicted} do not hold in the paper's own tables as read here)" if self.paper.numbers else ""
        lines.append(f"{len(self.claims)} claims in its text: {said}{own}.")
        judged = [self.against[ours.claim.id] for ours, _ in self.claims if ours.judged]
        if doubtful := [reasons for reasons in judged if reasons]:
            why = _counted(Counter(reason for reasons in doubtful for reason in reasons))
            share = f"{len(doubtful)} of {len(judged)}"
            lines.append(f"Claims judged by numbers that are not comparable: {share}. Why: {why}.")
        return lines


def _counted(reasons: Counter[str]) -> str:
    """The most frequent one first."""
    return "; ".join(f"{reason} ({count:,})" for reason, count in reasons.most_common())


def places_of_all(campaigns: Sequence[Campaign]) -> dict[str, Place]:
    """
    By host. Raises SummaryError if a workload is in two campaigns with the same device, or if a host of one is not the
    same in another: a paper's claims across tables are about one machine. Only versions of its model may differ, and
    not within a suite.
    """
    parts: dict[tuple[str, str, str], int] = {}
    known: dict[str, Place] = {}
    for at, campaign in enumerate(campaigns):
        for part in sorted({(run.suite, run.device, run.workload) for run in campaign.runs}):
            if (other := parts.setdefault(part, at)) != at:
                suite, device, workload = part
                raise SummaryError(
                    f"{campaign.name}: has {workload} of suite {suite} with {device}, as {campaigns[other].name} has;"
                    " compare each by itself"
                )
        for host, place in places(campaign).items():
            before = known.get(host, place)
            names = before.differences(place)
            if names and not (names == ["emulated"] and before.simulated and place.simulated):
                told = f"{host} is not as in {campaigns[0].name} ({', '.join(names)})"
                raise SummaryError(f"{campaign.name}: {told}; compare each by itself")
            known[host] = before.with_devices_of(place)
    return known


def models_of_suites(campaigns: Sequence[Campaign]) -> dict[str, str]:
    """How suites were simulated, if that differs between them. Raises SummaryError if it does within one."""
    found: dict[str, str] = {}
    for campaign in campaigns:
        for suite, words in dict.fromkeys((run.suite, run.emulated) for run in campaign.runs):
            if words.startswith(SIMULATED) and found.setdefault(suite, words) != words:
                told = f"suite {suite} is {words}, in another campaign {found[suite]}"
                raise SummaryError(f"{campaign.name}: {told}; compare each by itself")
    return found if len(set(found.values())) > 1 else {}


def compare_with_paper(campaigns: Sequence[Campaign], tables: Sequence[Table], paper: Paper) -> PaperComparison:
    """
    Compare campaigns, of different suites or devices, with a paper. tables: of all their runs. With several hosts, one
    gives each device's numbers. Raises SummaryError.
    """
    where, models = places_of_all(campaigns), models_of_suites(campaigns)

    cells: list[PaperCell] = []
    checked = {}
    measured_at: dict[int, Mapping[str, str]] = {}

    def reasons_of(host: str, system: str, device: str, absolute: bool = False) -> tuple[str, ...]:
        return reasons_against(paper, where.get(host), system, device, absolute)

    for number, theirs in paper.tables.items():

        def of_table(host: str, system: str, device: str, theirs: Table = theirs) -> tuple[str, ...]:
            return reasons_of(host, system, device, theirs.absolute(system))

        suites = paper.suites[number]
        suite = next((suite for suite in suites if any(table.suite == suite for table in tables)), suites[0])
        own = [table for table in tables if table.suite == suite]
        if theirs.base != NATIVE:
            runs = [run for campaign in campaigns for run in campaign.runs if run.suite == suite]
            own = tables_of(runs, theirs.base, theirs.metrics)
        listed = {device for device, _ in theirs.rows}
        devices = {name: one for name, one in paper.devices.items() if name in listed}
        ours, hosts = of_all_hosts(own, devices, where, of_table, paper.environment["cpus"])
        cells += compared(ours, theirs, suite, hosts, of_table)
        if ours is not None:
            checked[number], measured_at[number] = ours, hosts
    rows = {number: table.rows for number, table in paper.tables.items()}
    results = [
        (check_claim(claim, checked, rows), check_claim(claim, paper.tables, rows, printed=True))
        for claim in paper.claims
    ]
    against = {
        claim.id: tuple(
            dict.fromkeys(
                reason
                for number, device, system in sorted(places_of(claim, rows))
                if device in measured_at.get(number, {}) and system in checked[number].systems
                for reason in reasons_of(measured_at[number][device], system, device, claim.of_means)
            )
        )
        for claim in paper.claims
    }
    simulated = any(place.simulated for place in where.values())
    return PaperComparison(paper, tuple(cells), tuple(results), checked, against, models, simulated)


def compare_with_papers(campaign: Campaign, tables: Sequence[Table], configs: Path) -> list[PaperComparison]:
    """With each paper that has a table of one of the campaign's suites. Raises SummaryError."""
    found = papers_of({run.suite for run in campaign.runs}, configs)
    return [compare_with_paper([campaign], tables, one) for one in found]


def paper_for(campaign: Campaign, configs: Path, name: str = ANY) -> Paper:
    """The paper of that name; for `paper` that with most numbers for the campaign's suites. Raises SummaryError."""
    if name != ANY:
        return load_paper(name, configs)
    suites = {run.suite for run in campaign.runs}
    found = papers_of(suites, configs)
    if not found:
        raise SummaryError(f"{ANY}: none has suite {', '.join(sorted(suites))}; userblk papers lists those that exist")
    return found[0]


# ---- output ------------------------------------------------------------------------------


def classes(comparison: PaperComparison) -> list[Table]:
    """Ours and the paper's own, in its classes; none where it has none."""
    paper = comparison.paper
    if not paper.grades:
        return []
    own = [table for table in paper.tables.values() if table.cells]
    return [graded(table, paper.grades, paper.source) for table in (*comparison.ours.values(), *own)]


def terminal(comparison: PaperComparison, console: Console) -> RenderableType:
    """The summary, the classes and the list of claims."""
    grid = new_grid("Section", "Verdict", "Paper's table", "Cells")
    grid.add_column("Claim", no_wrap=False, overflow="fold")
    for ours, theirs in comparison.claims:
        claim = ours.claim
        against = [f"  not: {text}" for text in ours.against[:EXAMPLES]]
        if len(ours.against) > EXAMPLES:
            against.append(f"  and {len(ours.against) - EXAMPLES} more")
        text = "\n".join([claim.text, *against])
        own = theirs.verdict.value if theirs.judged else "no numbers"
        of_all = f" of {ours.judged + ours.missing}" if ours.judged and ours.missing else ""
        grid.add_row(claim.section, ours.verdict.value, own, f"{ours.true}/{ours.judged}{of_all}", text)
    title = Text(f"{comparison.paper.title} ({comparison.paper.source})", style="bold")
    summary = Text("\n".join(comparison.summary), style="bold")
    parts: list[RenderableType] = [title, summary]
    for table in classes(comparison):
        parts += ["", render.terminal(table, console)]
    if comparison.claims:
        parts += ["", grid]
    return Group(*parts)


def as_json(comparison: PaperComparison) -> dict[str, Any]:
    """For programs."""
    cells = [
        {
            "table": cell.table,
            "suite": cell.suite,
            "host": cell.host,
            "device": cell.device,
            "workload": cell.workload,
            "system": cell.system,
            "metric": cell.metric.id,
            "paper": cell.paper,
            "paper_half": round(cell.bound, 3),
            "margin": round(cell.margin, 3),
            "value": cell.ours.value if cell.ours else None,
            "low": cell.ours.low if cell.ours else None,
            "high": cell.ours.high if cell.ours else None,
            "n": cell.n,
            "verdict": cell.verdict.value,
            "shape": cell.shape.value if cell.shape else None,
            "reasons": list(cell.reasons),
        }
        | _graded_json(cell, comparison.paper.grades)
        for cell in comparison.cells
    ]
    claims = [
        {
            "id": ours.claim.id,
            "section": ours.claim.section,
            "text": ours.claim.text,
            "verdict": ours.verdict.value,
            "paper_table": theirs.verdict.value,
            "true": ours.true,
            "false": ours.false,
            "undecided": ours.undecided,
            "missing": ours.missing,
            "against": list(ours.against),
            "reasons": list(comparison.against[ours.claim.id]) if ours.judged else [],
        }
        for ours, theirs in comparison.claims
    ]
    return {
        "schema": 1,
        "paper": comparison.paper.name,
        "summary": comparison.summary,
        "cells": cells,
        "claims": claims,
    }


def _graded_json(cell: PaperCell, grades: Sequence[Grade]) -> dict[str, Any]:
    """Our class of a cell and the paper's; nothing where it has no classes."""
    if not grades:
        return {}
    of_throughput = cell.metric is METRICS[0] and cell.system != NATIVE
    ours = grade_of(cell.ours.value + 100, grades).name if of_throughput and cell.ours else None
    return {"class": ours, "paper_class": grade_of(cell.paper + 100, grades).name if of_throughput else None}


def as_csv(comparison: PaperComparison) -> str:
    """A line for each of the paper's numbers."""
    rows = as_json(comparison)["cells"]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        empty = {name: "" if value is None else value for name, value in row.items()}
        writer.writerow(empty | {"reasons": "; ".join(row["reasons"])})
    return out.getvalue()
