# SPDX-License-Identifier: BSD-3-Clause
"""A campaign beside a paper (papers.py): its numbers cell by cell, and what its text says of them.

Where a paper prints no intervals, its numbers are taken to be worth the half widths that it allows its means.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from . import render
from .compare import environments
from .papers import Claim, Paper, PaperDevice, load_paper, papers_of
from .render import new_grid, signed
from .statistics import Interval
from .summaries import Campaign, SummaryError
from .table import (
    DEVICES,
    METRICS,
    NATIVE,
    RATE,
    SYSTEMS,
    Cell,
    Grade,
    Metric,
    Table,
    grade_of,
    graded,
    half_width_limit,
    ordered,
    tables_of,
)

ANY = "paper"  # on the command line: whichever has the campaign's suites
ROUNDING = {True: 0.5, False: 0.05}  # of a printed difference: points of CPU; %
MARGIN = 2.0  # of the comparison, in half widths that the paper allows its means
BLOCKS = 1  # number of the table of block devices
EXAMPLES = 3  # cells that are named where a claim does not hold


class Verdict(Enum):
    """Verdict on one of the paper's numbers. The first four also judge the shape of cells that cannot be compared."""

    AGREES = "agrees"
    SAME = "same sign and order"
    DIFFERS = "differs"
    UNDECIDED = "undecided"
    NOT_COMPARABLE = "not comparable"
    NOT_MEASURED = "not measured"


class ClaimVerdict(Enum):
    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "undecided"
    NOT_MEASURED = "not measured"


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
class PaperCell:
    """A number of the paper's and ours. bound: half width that the paper's may have; margin: of the comparison.

    suite: of ours, with the table; device: the paper's; host: where ours was measured.
    shape: what the verdict would be if it could be compared, None where nothing was measured. reasons: why it cannot.
    base: as the table's.
    """

    table: int
    suite: str
    host: str
    device: str
    workload: str
    system: str
    metric: Metric
    paper: float
    bound: float
    margin: float
    ours: Interval | None
    n: int
    verdict: Verdict
    shape: Verdict | None
    reasons: tuple[str, ...]
    base: str = NATIVE

    @property
    def absolute(self) -> bool:
        """Is it a mean, and no difference to another system?"""
        return self.base in ("", self.system)


@dataclass(frozen=True)
class ClaimResult:
    """How many of the claim's cells satisfy it, do not, may do either, are not there; and some that do not."""

    claim: Claim
    true: int
    false: int
    undecided: int
    missing: int
    against: tuple[str, ...]

    @property
    def verdict(self) -> ClaimVerdict:
        total = self.true + self.false + self.undecided
        if not total:
            return ClaimVerdict.NOT_MEASURED
        needed = self.claim.share * total
        if self.true >= needed:
            return ClaimVerdict.HOLDS
        return ClaimVerdict.FAILS if total - self.false < needed else ClaimVerdict.OPEN

    @property
    def counted(self) -> str:
        """The numbers in a few words."""
        parts = [f"{self.true} of {self.true + self.false + self.undecided} cells"]
        parts += [f"{self.undecided} undecided"] * bool(self.undecided)
        parts += [f"{self.missing} not measured"] * bool(self.missing)
        return ", ".join(parts)


@dataclass(frozen=True)
class PaperComparison:
    """claims: each with our result and that of the paper's own tables. ours: our tables of its devices, by number."""

    paper: Paper
    cells: tuple[PaperCell, ...]
    claims: tuple[tuple[ClaimResult, ClaimResult], ...]
    ours: Mapping[int, Table]

    @property
    def summary(self) -> list[str]:
        counts = Counter(cell.verdict for cell in self.cells)
        shapes = Counter(cell.shape for cell in self.cells if cell.shape)
        reasons = Counter(reason for cell in self.cells for reason in cell.reasons)
        measured = len(self.cells) - counts[Verdict.NOT_MEASURED]
        comparable = measured - counts[Verdict.NOT_COMPARABLE]
        missing = sorted({cell.system for cell in self.cells if cell.verdict is Verdict.NOT_MEASURED})
        told = (Verdict.AGREES, Verdict.SAME, Verdict.DIFFERS, Verdict.UNDECIDED)
        listed, whatever = (
            ", ".join(f"{count[verdict]:,} {PLURAL[verdict]}" for verdict in told) for count in (counts, shapes)
        )
        lines = []
        if self.cells:
            line = f"{measured:,} of the paper's {len(self.cells):,} numbers are measured, {comparable:,} comparable"
            lines.append(line + (f": {listed}." if comparable else "."))
        if comparable < measured:
            why = "; ".join(f"{reason} ({count:,})" for reason, count in reasons.most_common())
            lines.append(f"Not comparable: {why}.")
            lines.append(f"All measured numbers, comparable or not: {whatever}.")
        if missing:
            lines.append(f"Not measured, at least in part: {', '.join(SYSTEMS.get(name, name) for name in missing)}.")
        if not self.claims:
            return lines
        verdicts = Counter(ours.verdict for ours, _ in self.claims)
        said = ", ".join(f"{verdicts[verdict]} {PLURAL[verdict]}" for verdict in ClaimVerdict)
        whose = "" if comparable else ", judged by numbers that are not comparable"
        contradicted = sum(theirs.verdict is ClaimVerdict.FAILS for _, theirs in self.claims)
        lines.append(
            f"{len(self.claims)} claims in its text{whose}: {said}"
            f" ({contradicted} do not hold in the paper's own tables as read here)."
        )
        return lines


# ---- numbers ------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """A value and how far it may be from the truth on either side."""

    low: float
    value: float
    high: float

    def clear_of(self, other: Span) -> int:
        """-1 if all of it is below the other, 1 if above, 0 if they overlap."""
        return -1 if self.high < other.low else 1 if self.low > other.high else 0


def _span(interval: Interval) -> Span:
    """What has no interval, such as a single run, may be anywhere."""
    low, high = interval.low, interval.high
    if low is None or high is None:
        return Span(-math.inf, interval.value, math.inf)
    return Span(low, interval.value, high)


def _point(interval: Interval) -> Span:
    """The span of a printed number, as it stands."""
    return Span(interval.value, interval.value, interval.value)


def _bound(metric: Metric, table: Table, device: str, workload: str, system: str, value: float) -> float:
    """Half width that a number of the paper's may have, with its rounding.

    A difference has the uncertainty of both means, taken as independent.
    """
    limit = half_width_limit(metric, device, workload, 1.0, files=table.number != BLOCKS)
    if table.absolute(system):
        return limit if metric.points else abs(value) * limit
    if metric.points:
        return limit * math.sqrt(2) + ROUNDING[True]
    return (100 + value) * limit * math.sqrt(2) + ROUNDING[False]


def paper_span(table: Table, device: str, workload: str, system: str, metric: Metric) -> Span | None:
    """One of the paper's numbers with its interval, or the half width that it may have."""
    interval = table.printed(system, table.cell(device, workload, system, metric))
    if interval is None:
        return None
    if interval.half is not None:
        return _span(interval)
    bound = _bound(metric, table, device, workload, system, interval.value)
    return Span(interval.value - bound, interval.value, interval.value + bound)


def equivalence_margin(
    metric: Metric, table: int, device: str, workload: str, value: float, absolute: bool = False
) -> float:
    """How far from one of the paper's numbers a number of ours counts as the same, in the number's unit.

    Twice the half width that the paper allows its means: 10 % of an absolute value or of what is left of it (writes to
    NVMe in Table 1: 20 %), 10 points of CPU. table: its number.
    """
    limit = MARGIN * half_width_limit(metric, device, workload, 1.0, files=table != BLOCKS)
    if metric.points:
        return limit
    return limit * abs(value if absolute else 100 + value)


ZERO = Span(0.0, 0.0, 0.0)


def judge_cell(ours: Table, paper: Table, device: str, workload: str, system: str, metric: Metric) -> Verdict | None:
    """Agreement of a cell, whether it can be compared or not; None where we have nothing.

    Two one-sided tests of half the error each: the interval lies within the margin around the paper's number, or
    beyond it. What does neither, or is wider than the margin, is undecided.
    """
    interval = paper.printed(system, ours.cell(device, workload, system, metric))
    theirs = paper_span(paper, device, workload, system, metric)
    if interval is None or theirs is None:
        return None
    mine = _span(interval)
    absolute = paper.absolute(system)
    margin = equivalence_margin(metric, paper.number, device, workload, theirs.value, absolute)
    if theirs.value - margin <= mine.low and mine.high <= theirs.value + margin:
        return Verdict.AGREES
    if not mine.clear_of(Span(theirs.value - margin, theirs.value, theirs.value + margin)):
        return Verdict.UNDECIDED
    if absolute or mine.clear_of(ZERO) * theirs.clear_of(ZERO) < 0:
        return Verdict.DIFFERS
    for other in ours.systems:
        rival = ours.cell(device, workload, other, metric).difference
        theirs_rival = paper_span(paper, device, workload, other, metric)
        if other == system or paper.absolute(other) or rival is None or theirs_rival is None:
            continue
        if mine.clear_of(_span(rival)) * theirs.clear_of(theirs_rival) < 0:
            return Verdict.DIFFERS
    if interval.half is None or interval.half > margin:
        return Verdict.UNDECIDED
    return Verdict.SAME if mine.clear_of(ZERO) == theirs.clear_of(ZERO) else Verdict.DIFFERS


# ---- what can be compared --------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """What decides whether a host's numbers can be compared. models: of the devices, by id. turning: the hard disks."""

    emulated: str  # as Run.emulated
    profile: str
    kernel: str
    packages: Mapping[str, str]
    cpus: int
    models: Mapping[str, str]
    turning: frozenset[str]


def _models(environment: Mapping[str, Any]) -> dict[str, str]:
    devices = environment.get("devices", {})
    if not isinstance(devices, Mapping):
        return {}
    return {name: str(one.get("model", "")) for name, one in devices.items() if isinstance(one, Mapping)}


def places(campaign: Campaign) -> dict[str, Place]:
    """By host."""
    found = {}
    known = environments(campaign)
    for host in dict.fromkeys(run.host for run in campaign.runs):
        run = next(run for run in campaign.runs if run.host == host)
        environment = known[run.machine or run.host]
        packages = environment.get("packages", {})
        packages = dict(packages) if isinstance(packages, Mapping) else {}
        cpus = int(environment.get("cpus") or 0)
        models = _models(environment)
        # A virtual disk says that it turns; a real one has a model.
        turning = {name for name, model in models.items() if model and not run.emulated and _turns(environment, name)}
        found[host] = Place(run.emulated, run.profile, run.kernel, packages, cpus, models, frozenset(turning))
    return found


def _turns(environment: Mapping[str, Any], device: str) -> bool:
    return environment["devices"][device].get("rotational") is True


def _upstream(version: str) -> str:
    """The upstream part of a Debian version."""
    return version.split(":", 1)[-1]


def _reasons(whole: Paper, place: Place | None, system: str, device: str, absolute: bool) -> tuple[str, ...]:
    """Why a system's numbers from a place cannot be compared with the paper's on its device. absolute: of PaperCell."""
    if place is None:
        return ("unknown host",)
    reasons = []
    paper, stand_in = whole.environment, whole.devices[device]
    if place.emulated:
        reasons.append("simulated" if place.emulated.startswith("SIMULATED") else "emulated device")
    elif absolute and paper["device"].get(device, "?") not in place.models.get(stand_in.ours, ""):
        reasons.append(f"another {stand_in.title} device")
    if place.profile != paper["profile"]:
        reasons.append(f"profile {place.profile}")
    if not place.kernel.startswith(tuple(paper["kernel_same"])):
        reasons.append(f"Linux {place.kernel}, not {paper['kernel']}")
    cpus = paper["cpus"].get(device, place.cpus)
    if place.cpus != cpus and not place.emulated:
        reasons.append(f"{place.cpus or 'unknown'} CPUs, not {cpus}")
    if system in paper["instead"]:
        reasons.append(paper["instead"][system])
    elif framework := paper["framework"].get(system):
        found = [_upstream(place.packages[name]) for name in framework["packages"] if name in place.packages]
        if not any(version.startswith(tuple(framework["same"])) for version in found):
            shown = found[0] if found else "of unknown version"
            reasons.append(f"{SYSTEMS.get(system, system)} {shown}, not {framework['version']}")
    return tuple(reasons)


def _stands_for(device: str, theirs: PaperDevice, place: Place | None) -> bool:
    """Is a device of ours at a place what one of the paper's is compared with?"""
    turning = place is not None and device in place.turning
    return theirs.ours in ("", device) and theirs.rotational in (None, turning)


def _of_all_hosts(
    tables: Sequence[Table],
    devices: Mapping[str, PaperDevice],
    where: Mapping[str, Place],
    reasons_of: Callable[[str, str, str], tuple[str, ...]],
) -> tuple[Table | None, dict[str, str]]:
    """One table of the paper's devices, and the host of each: where least speaks against a comparison."""
    chosen: dict[str, Table] = {}
    names: dict[tuple[str, str], str] = {}
    for table in tables:
        for device, theirs in devices.items():
            place = where.get(table.host)
            own = next((own for own, _ in table.rows if _stands_for(own, theirs, place)), None)
            if own is None:
                continue
            best = chosen.get(device)
            if best is None or len(reasons_of(table.host, NATIVE, device)) < len(reasons_of(best.host, NATIVE, device)):
                chosen[device] = table
                names = {key: name for key, name in names.items() if name != device} | {(table.host, own): device}
    if not chosen:
        return None, {}
    parts = list({table.host: table for table in chosen.values()}.values())
    cells = {
        (names[table.host, key[0]], *key[1:]): cell
        for table in parts
        for key, cell in table.cells.items()
        if (table.host, key[0]) in names
    }
    rows = tuple(
        (names[table.host, own], workload)
        for table in parts
        for own, workload in table.rows
        if (table.host, own) in names
    )
    systems = ordered((system for table in parts for system in table.systems), SYSTEMS)
    hosts = {device: table.host for device, table in chosen.items()}
    return replace(parts[0], rows=rows, systems=systems, cells=cells), hosts


def _compared(
    ours: Table | None,
    paper: Table,
    suite: str,
    hosts: Mapping[str, str],
    reasons_of: Callable[[str, str, str], tuple[str, ...]],
) -> Iterator[PaperCell]:
    """hosts: of ours, by device. suite: of ours."""
    for (device, workload, system, name), cell in paper.cells.items():
        interval = paper.printed(system, cell)
        if interval is None:
            continue
        metric = next(metric for metric in (*METRICS, RATE) if metric.id == name)
        bound = interval.half
        if bound is None:
            bound = _bound(metric, paper, device, workload, system, interval.value)
        absolute = paper.absolute(system)
        margin = equivalence_margin(metric, paper.number, device, workload, interval.value, absolute)
        mine: Interval | None = None
        shape: Verdict | None = None
        reasons: tuple[str, ...] = ()
        n, verdict = 0, Verdict.NOT_MEASURED
        if ours is not None and device in hosts:
            own: Cell = ours.cell(device, workload, system, metric)
            mine, n = paper.printed(system, own), own.n
            shape = judge_cell(ours, paper, device, workload, system, metric)
            if shape is not None:
                reasons = reasons_of(hosts[device], system, device)
                verdict = Verdict.NOT_COMPARABLE if reasons else shape
        place = (paper.number, suite, hosts.get(device, ""), device, workload, system, metric)
        yield PaperCell(*place, interval.value, bound, margin, mine, n, verdict, shape, reasons, paper.base)


# ---- claims ---------------------------------------------------------------------------


def _quantity(claim: Claim, cell: Cell, metric: Metric, printed: bool) -> Span | None:
    interval = cell.mean if claim.of == "mean" else cell.difference
    if interval is None:
        return None
    span = _point(interval) if printed else _span(interval)
    if claim.of == "size":
        ends = sorted((abs(span.low), abs(span.high)))
        return Span(0.0 if span.low < 0 < span.high else ends[0], abs(span.value), ends[1])
    return _negative(span) if metric.sign > 0 else span


def _tolerance(claim: Claim, one: _Instance, at: float, printed: bool) -> float:
    """How far beyond a bound, at, a number of ours satisfies the claim: the half width that the paper allows its means.

    5 % of what the bound leaves of native (writes to NVMe in Table 1: 10 %), 5 points of CPU. The paper's own numbers
    have none but that they are printed.
    """
    if printed or not math.isfinite(at):
        return EPSILON
    limit = half_width_limit(one.metric, one.device, one.workload, 1.0, files=one.table != BLOCKS)
    if one.metric.points:
        return limit
    if claim.of == "mean":
        return limit * abs(at)
    return limit * abs(100 - one.metric.sign * at)


def _shown(claim: Claim, cell: Cell) -> str:
    """What a table shows of it."""
    if claim.of == "mean":
        return f"{cell.mean.value:.2f}" if cell.mean else ""
    return signed(cell.difference.value, 1) if cell.difference else ""


def _at_most(span: Span, limit: float) -> bool | None:
    return True if span.high <= limit else False if span.low > limit else None


def _both(a: bool | None, b: bool | None) -> bool | None:
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def _negative(span: Span) -> Span:
    return Span(-span.high, -span.value, -span.low)


EPSILON = 1e-6  # a number meets the bound that is printed with the same digits
Rows = Mapping[int, Sequence[tuple[str, str]]]  # device and workload, by table


@dataclass(frozen=True)
class _Instance:
    table: int
    device: str
    workload: str
    system: str
    metric: Metric


def _instances(claim: Claim, rows: Rows) -> Iterator[_Instance]:
    for number in claim.tables:
        for device, workload in rows.get(number, ()):
            if device not in claim.devices or f"{device} {workload}" in claim.left_out:
                continue
            if any(fnmatchcase(workload, pattern) for pattern in claim.workloads):
                for system in claim.systems:
                    for metric in claim.metrics:
                        yield _Instance(number, device, workload, system, metric)


def _rivals(claim: Claim, one: _Instance) -> Iterator[_Instance]:
    """What a cell is measured against."""
    than = claim.than or {}
    place = (than.get("table", one.table), than.get("device", one.device), than.get("workload", one.workload))
    for system in than.get("systems", (one.system,)):
        yield _Instance(*place, system, one.metric)


def _judge(
    claim: Claim, tables: Mapping[int, Table], one: _Instance, rival: _Instance | None, printed: bool
) -> tuple[bool | None, str] | None:
    """Whether one cell satisfies the claim (None: may or may not), with what it shows; None if it is not there."""

    def cell_of(instance: _Instance, metric: Metric) -> Cell | None:
        table = tables.get(instance.table)
        return table.cell(instance.device, instance.workload, instance.system, metric) if table else None

    cell = cell_of(one, one.metric)
    if cell is None:
        return None
    if claim.half_width is not None:
        if cell.mean is None or cell.mean.half is None or not cell.mean.value:
            return None
        half = cell.mean.half if one.metric.points else 100 * cell.mean.half / abs(cell.mean.value)
        return half <= claim.half_width + EPSILON, f"±{half:.1f}"
    if claim.reciprocal is not None:
        other = cell_of(one, METRICS[1])
        if cell.difference is None or other is None or other.difference is None:
            return None
        if not printed and None in (cell.difference.half, other.difference.half):
            return None, "one run"
        product = (100 + cell.difference.value) * (100 + other.difference.value) / 1e4
        return abs(product - 1) * 100 <= claim.reciprocal, f"{product:.2f}"
    if claim.ratio:
        other = cell_of(rival, rival.metric) if rival else None
        return _judge_ratio(claim, one, cell, other, printed) if other else None
    span, value = _quantity(claim, cell, one.metric, printed), _shown(claim, cell)
    if span is None:
        return None
    if rival is None:
        most = claim.most + _tolerance(claim, one, claim.most, printed)
        least = claim.least - _tolerance(claim, one, claim.least, printed)
        return _both(_at_most(span, most), _at_most(_negative(span), -least)), value
    other = cell_of(rival, rival.metric)
    against = None if other is None else _quantity(claim, other, rival.metric, printed)
    if other is None or against is None:
        return None
    gap = Span(span.low - against.high, span.value - against.value, span.high - against.low)
    shown = f"{value} against {_shown(claim, other)}"
    tolerance = _tolerance(claim, one, against.value, printed)
    if claim.near is not None:
        limit = claim.near + tolerance
        return _both(_at_most(gap, limit), _at_most(_negative(gap), limit)), shown
    return _at_most(gap, claim.margin + tolerance), shown


def _judge_ratio(
    claim: Claim, one: _Instance, cell: Cell, other: Cell, printed: bool
) -> tuple[bool | None, str] | None:
    """Judge the mean of one cell over that of the other; their intervals are taken as independent."""
    if cell.mean is None or other.mean is None or not other.mean.value:
        return None
    value = cell.mean.value / other.mean.value
    away = 0.0
    if not printed:
        halves = [
            mean.half / abs(mean.value) if mean.half is not None else math.inf for mean in (cell.mean, other.mean)
        ]
        away = value * math.hypot(*halves)
    limit = 0.0 if printed else half_width_limit(one.metric, one.device, one.workload, 1.0, files=one.table != BLOCKS)
    span = Span(value - away, value, value + away)
    most, least = claim.most * (1 + limit) + EPSILON, claim.least * (1 - limit) - EPSILON
    return _both(_at_most(span, most), _at_most(_negative(span), -least)), f"{value:.2f} times"


def check_claim(claim: Claim, tables: Mapping[int, Table], rows: Rows, printed: bool = False) -> ClaimResult:
    """tables: where it is checked, by number. rows: the paper's, so that what was not measured is counted as such.

    printed: they are the paper's own, to be taken as they stand.
    """
    counts: Counter[bool | None] = Counter()
    missing = 0
    against = []
    for one in _instances(claim, rows):
        rivals: Iterable[_Instance | None] = (None,) if claim.than is None else _rivals(claim, one)
        for rival in rivals:
            judged = _judge(claim, tables, one, rival, printed)
            if judged is None:
                missing += 1
                continue
            truth, shown = judged
            counts[truth] += 1
            if truth is False:
                versus = ""
                if rival is not None and rival.system != one.system:
                    versus = f" against {SYSTEMS.get(rival.system, rival.system)}"
                place = f"{DEVICES.get(one.device, one.device)} {one.workload} {SYSTEMS.get(one.system, one.system)}"
                against.append(f"{place}{versus}, {one.metric.title.lower()}: {shown}")
    return ClaimResult(claim, counts[True], counts[False], counts[None], missing, tuple(against))


def compare_with_paper(campaign: Campaign, tables: Sequence[Table], paper: Paper) -> PaperComparison:
    """Compare a campaign with a paper. With several hosts, one gives each device's numbers. Raises SummaryError."""
    where = places(campaign)

    cells: list[PaperCell] = []
    checked = {}
    for number, theirs in paper.tables.items():

        def reasons_of(host: str, system: str, device: str, theirs: Table = theirs) -> tuple[str, ...]:
            return _reasons(paper, where.get(host), system, device, theirs.absolute(system))

        suites = paper.suites[number]
        suite = next((suite for suite in suites if any(table.suite == suite for table in tables)), suites[0])
        own = [table for table in tables if table.suite == suite]
        if theirs.base != NATIVE:
            own = tables_of([run for run in campaign.runs if run.suite == suite], theirs.base, theirs.metrics)
        listed = {device for device, _ in theirs.rows}
        devices = {name: one for name, one in paper.devices.items() if name in listed}
        ours, hosts = _of_all_hosts(own, devices, where, reasons_of)
        cells += _compared(ours, theirs, suite, hosts, reasons_of)
        if ours is not None:
            checked[number] = ours
    rows = {number: table.rows for number, table in paper.tables.items()}
    results = [
        (check_claim(claim, checked, rows), check_claim(claim, paper.tables, rows, printed=True))
        for claim in paper.claims
    ]
    return PaperComparison(paper, tuple(cells), tuple(results), checked)


def compare_with_papers(campaign: Campaign, tables: Sequence[Table], configs: Path) -> list[PaperComparison]:
    """With each paper that has a table of one of the campaign's suites. Raises SummaryError."""
    found = papers_of({run.suite for run in campaign.runs}, configs)
    return [compare_with_paper(campaign, tables, one) for one in found]


def paper_for(campaign: Campaign, configs: Path, name: str = ANY) -> Paper:
    """The paper of that name; for `paper` that with most numbers for the campaign's suites. Raises SummaryError."""
    if name != ANY:
        return load_paper(name, configs)
    suites = {run.suite for run in campaign.runs}
    found = papers_of(suites, configs)
    if not found:
        raise SummaryError(
            f"{ANY}: none has suite {', '.join(sorted(suites))}; userblk papers lists those that there are"
        )
    return found[0]


# ---- shown ------------------------------------------------------------------------------


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
        verdicts = (ours.verdict.value, theirs.verdict.value)
        grid.add_row(claim.section, *verdicts, f"{ours.true}/{ours.true + ours.false + ours.undecided}", text)
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
