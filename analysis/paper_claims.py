# SPDX-License-Identifier: BSD-3-Clause
"""The claims in a paper's text, checked against tables: ours, and those that the paper prints."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase

from .paper_cells import BLOCKS, Span, span_of
from .papers import WILDCARD, Claim
from .render import signed
from .statistics import Interval, ratio_of_means
from .table import DEVICES, METRICS, SYSTEMS, Cell, Metric, Table, half_width_limit

EPSILON = 1e-6  # a number meets the bound that is printed with the same digits
Rows = Mapping[int, Sequence[tuple[str, str]]]  # device and workload, by table


class ClaimVerdict(Enum):
    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "undecided"
    NOT_MEASURED = "not measured"


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
    def judged(self) -> int:
        """How many cells were measured."""
        return self.true + self.false + self.undecided

    @property
    def verdict(self) -> ClaimVerdict:
        if not self.judged:
            return ClaimVerdict.NOT_MEASURED
        total = self.judged + self.missing  # what was not measured may be for the claim or against it
        needed = self.claim.share * total
        if self.true >= needed:
            return ClaimVerdict.HOLDS
        return ClaimVerdict.FAILS if total - self.false < needed else ClaimVerdict.OPEN

    @property
    def counted(self) -> str:
        """The numbers in a few words."""
        parts = [f"{self.true} of {self.judged} cells"]
        parts += [f"{self.undecided} undecided"] * bool(self.undecided)
        parts += [f"{self.missing} not measured"] * bool(self.missing)
        return ", ".join(parts)


def _point(interval: Interval) -> Span:
    """The span of a printed number, as it stands."""
    return Span(interval.value, interval.value, interval.value)


def _quantity(claim: Claim, cell: Cell, metric: Metric, printed: bool) -> Span | None:
    interval = cell.mean if claim.of_means else cell.difference
    if interval is None:
        return None
    span = _point(interval) if printed else span_of(interval)
    if claim.of == "size":
        ends = sorted((abs(span.low), abs(span.high)))
        return Span(0.0 if span.low < 0 < span.high else ends[0], abs(span.value), ends[1])
    return _negative(span) if metric.sign > 0 and not (claim.of_means and claim.than is None) else span


def _tolerance(claim: Claim, one: _Instance, at: float, printed: bool) -> float:
    """How far beyond a bound, at, a number of ours satisfies the claim: the half width that the paper allows its means.

    5 % of what the bound leaves of native (writes to NVMe in Table 1: 10 %), 5 points of CPU. The paper's own numbers
    have none but that they are printed.
    """
    if printed or claim.exact or not math.isfinite(at):
        return EPSILON
    limit = half_width_limit(one.metric, one.device, one.workload, 1.0, files=one.table != BLOCKS)
    if one.metric.points:
        return limit
    if claim.of_means:
        return limit * abs(at)
    return limit * abs(100 - one.metric.sign * at)


def _shown(claim: Claim, cell: Cell) -> str:
    """What a table shows of it."""
    if claim.of_means:
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


def _filled(text: str, patterns: Iterable[str], workload: str) -> str:
    """Its wildcards as those of the first of the patterns that the workload matches."""
    pattern = next(pattern for pattern in patterns if fnmatchcase(workload, pattern))
    parts = (
        {"*": "(.*)", "?": "(.)"}.get(part, f"({part})" if part.startswith("[") else re.escape(part))
        for part in WILDCARD.split(pattern)
    )
    found = re.fullmatch("".join(parts), workload)
    groups = iter(found.groups() if found else ())
    return WILDCARD.sub(lambda _: next(groups), text)


def _rivals(claim: Claim, one: _Instance) -> Iterator[_Instance]:
    """What a cell is measured against."""
    than = claim.than or {}
    workload = _filled(than.get("workload", one.workload), claim.workloads, one.workload)
    place = (than.get("table", one.table), than.get("device", one.device), workload)
    for system in than.get("systems", (one.system,)):
        yield _Instance(*place, system, one.metric)


def _all_of(claim: Claim, rows: Rows) -> Iterator[_Instance]:
    """All that a claim is about, and what that is measured against."""
    for one in _instances(claim, rows):
        yield one
        yield from _rivals(claim, one)


def cells_of(claim: Claim, rows: Rows) -> set[tuple[int, str, str]]:
    """Table, workload and system of all that a claim is about, and of what that is measured against."""
    return {(cell.table, cell.workload, cell.system) for cell in _all_of(claim, rows)}


def places_of(claim: Claim, rows: Rows) -> set[tuple[int, str, str]]:
    """Table, device and system of the same."""
    return {(cell.table, cell.device, cell.system) for cell in _all_of(claim, rows)}


def _cell(tables: Mapping[int, Table], one: _Instance) -> Cell | None:
    table = tables.get(one.table)
    return table.cell(one.device, one.workload, one.system, one.metric) if table else None


def _judge(
    claim: Claim, tables: Mapping[int, Table], one: _Instance, rival: _Instance | None, printed: bool
) -> tuple[bool | None, str] | None:
    """Whether one cell satisfies the claim (None: may or may not), with what it shows; None if it is not there."""
    cell = _cell(tables, one)
    if cell is None:
        return None
    if claim.half_width is not None:
        if cell.mean is None or cell.mean.half is None or not cell.mean.value:
            return None
        half = cell.mean.half if one.metric.points else 100 * cell.mean.half / abs(cell.mean.value)
        return half <= claim.half_width + EPSILON, f"±{half:.1f}"
    if claim.reciprocal is not None:
        other = _cell(tables, replace(one, metric=METRICS[1]))
        if cell.difference is None or other is None or other.difference is None:
            return None
        if not printed and None in (cell.difference.half, other.difference.half):
            return None, "one run"
        product = (100 + cell.difference.value) * (100 + other.difference.value) / 1e4
        return abs(product - 1) * 100 <= claim.reciprocal, f"{product:.2f}"
    if claim.ratio:
        other = _cell(tables, rival) if rival else None
        return _judge_ratio(claim, one, cell, other, printed) if other else None
    span, value = _quantity(claim, cell, one.metric, printed), _shown(claim, cell)
    if span is None:
        return None
    if rival is None:
        return _within(claim, one, span, printed), value
    other = _cell(tables, rival)
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


def _within(claim: Claim, one: _Instance, span: Span, printed: bool) -> bool | None:
    """Whether a quantity lies between the claim's bounds."""
    most = claim.most + _tolerance(claim, one, claim.most, printed)
    least = claim.least - _tolerance(claim, one, claim.least, printed)
    return _both(_at_most(span, most), _at_most(_negative(span), -least))


def _judge_ratio(
    claim: Claim, one: _Instance, cell: Cell, other: Cell, printed: bool
) -> tuple[bool | None, str] | None:
    """Judge the mean of one cell over that of the other."""
    span = _ratio(cell, other, printed)
    return (_ratio_within(claim, one, span, printed), f"{span.value:.2f} times") if span else None


def _ratio(cell: Cell, other: Cell, printed: bool) -> Span | None:
    """The mean of one cell over that of the other; their intervals are taken as independent."""
    if cell.mean is None or other.mean is None or not other.mean.value:
        return None
    if printed:
        return _point(Interval(cell.mean.value / other.mean.value))
    ratio = ratio_of_means(cell.mean, other.mean)
    return span_of(ratio) if ratio else None


def _ratio_bounds(claim: Claim, one: _Instance, printed: bool) -> tuple[float, float]:
    """The least and the most that a ratio of ours may be."""
    limit = 0.0 if printed else half_width_limit(one.metric, one.device, one.workload, 1.0, files=one.table != BLOCKS)
    return claim.least * (1 - limit) - EPSILON, claim.most * (1 + limit) + EPSILON


def _ratio_within(claim: Claim, one: _Instance, span: Span, printed: bool) -> bool | None:
    least, most = _ratio_bounds(claim, one, printed)
    return _both(_at_most(span, most), _at_most(_negative(span), -least))


def _by_system(claim: Claim, rows: Rows) -> list[list[_Instance]]:
    """The cells of one device, system and metric together, of which the largest counts."""
    groups = defaultdict(list)
    for one in _instances(claim, rows):
        groups[one.table, one.device, one.system, one.metric.id].append(one)
    return list(groups.values())


def _judge_largest(
    claim: Claim, tables: Mapping[int, Table], cells: Sequence[_Instance], printed: bool
) -> tuple[bool | None, str] | None:
    """The same for the largest of several cells, or of their ratios. One that is missing may be larger than others."""
    found = []
    wanted = 0
    for one in cells:
        spans = _ratios(claim, tables, one, printed) if claim.ratio else [_mean(claim, tables, one, printed)]
        wanted += len(spans)
        found += [span for span in spans if span]
    if not found:
        return None
    largest = Span(max(span.low for span in found), max(span.value for span in found), max(span.high for span in found))
    if claim.ratio:
        most, within = _ratio_bounds(claim, cells[0], printed)[1], _ratio_within
    else:
        most, within = claim.most + _tolerance(claim, cells[0], claim.most, printed), _within
    if len(found) < wanted and not (largest.low > most or printed):
        return None
    return within(claim, cells[0], largest, printed), f"{largest.value:.2f}{' times' * claim.ratio}"


def _mean(claim: Claim, tables: Mapping[int, Table], one: _Instance, printed: bool) -> Span | None:
    cell = _cell(tables, one)
    return _quantity(claim, cell, one.metric, printed) if cell else None


def _ratios(claim: Claim, tables: Mapping[int, Table], one: _Instance, printed: bool) -> list[Span | None]:
    """A cell over each of its rivals; None: one of both is missing."""
    pairs = [(_cell(tables, one), _cell(tables, rival)) for rival in _rivals(claim, one)]
    return [_ratio(cell, other, printed) if cell and other else None for cell, other in pairs]


def _place(one: _Instance, workload: str) -> str:
    """Where it is, in words."""
    words = (DEVICES.get(one.device, one.device), workload, SYSTEMS.get(one.system, one.system))
    return " ".join(word for word in words if word)


def _judgements(
    claim: Claim, tables: Mapping[int, Table], rows: Rows, printed: bool
) -> Iterator[tuple[str, tuple[bool | None, str] | None]]:
    """Each cell or pair of cells that the claim is about, in words, with what _judge() says of it."""
    if claim.of == "largest":
        for cells in _by_system(claim, rows):
            where = f"{_place(cells[0], '')}, largest {cells[0].metric.title.lower()}"
            yield where, _judge_largest(claim, tables, cells, printed)
        return
    for one in _instances(claim, rows):
        rivals: Iterable[_Instance | None] = (None,) if claim.than is None else _rivals(claim, one)
        for rival in rivals:
            versus = ""
            if rival is not None and rival.system != one.system:
                versus = f" against {SYSTEMS.get(rival.system, rival.system)}"
            where = f"{_place(one, one.workload)}{versus}, {one.metric.title.lower()}"
            yield where, _judge(claim, tables, one, rival, printed)


def check_claim(claim: Claim, tables: Mapping[int, Table], rows: Rows, printed: bool = False) -> ClaimResult:
    """tables: where it is checked, by number. rows: the paper's, so that what was not measured is counted as such.

    printed: they are the paper's own, to be taken as they stand; what it leaves out is not missing.
    """
    counts: Counter[bool | None] = Counter()
    missing = 0
    against = []
    for where, judged in _judgements(claim, tables, rows, printed):
        if judged is None:
            missing += not printed
            continue
        truth, shown = judged
        counts[truth] += 1
        if truth is False:
            against.append(f"{where}: {shown}")
    return ClaimResult(claim, counts[True], counts[False], counts[None], missing, tuple(against))
